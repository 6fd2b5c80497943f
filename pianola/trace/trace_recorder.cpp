#include <pianola/trace/trace_recorder.hpp>

#include <pianola/trace/call_site.hpp>
#include <pianola/trace/host_read.hpp>
#include <pianola/trace/step_memory.hpp>
#include <pianola/trace/wrapped_number.hpp>

#include <ATen/SavedTensorHooks.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/GradMode.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <optional>
#include <variant>

namespace pianola {
namespace {

using trace::OpSpan;

std::uint32_t version_of(const at::Tensor& tensor) {
  const c10::VariableVersion& version = tensor.unsafeGetTensorImpl()->version_counter();
  return version.enabled() ? version.current_version() : 0;
}

// The stream of the first CUDA tensor's device; factories without inputs report the default stream of the CPU.
c10::StreamId stream_of(c10::ArrayRef<c10::IValue> inputs) {
  std::optional<c10::StreamId> stream;
  for (const c10::IValue& value : inputs) {
    trace::for_each_tensor(value, [&](const at::Tensor& tensor) {
      if (stream || !tensor.device().is_cuda()) return;
      stream = c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(tensor.device()).id();
    });
    if (stream) break;
  }
  return stream.value_or(0);
}

// What torch's own C++ describes: a subclass in Python, a nested tensor or one with symbolic sizes may throw or call Python
// when asked for its shape.
bool is_plain(const at::Tensor& tensor) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  return tensor.has_storage() && !impl->key_set().has(c10::DispatchKey::Python) && !tensor.is_nested() &&
         !impl->has_symbolic_sizes_strides();
}

// Note [Work inside an operation]
// Tensor subclasses and dispatch modes run Python inside an operation's span, and hooks on saved tensors run there too.
// What they compute, and on which memory, is nobody's own operation: it is swallowed with the spans inside.
bool may_run_other_work(const OpSpan& op) {
  if (c10::impl::TorchDispatchModeTLS::any_modes_set()) return true;
  if (c10::GradMode::is_enabled() && !at::SavedTensorDefaultHooks::get_tls_state().stack.empty()) return true;
  bool subclass = false;
  for (const c10::IValue& value : op.inputs) {
    trace::for_each_tensor(value, [&](const at::Tensor& tensor) {
      subclass = subclass || tensor.key_set().has(c10::DispatchKey::Python);
    });
  }
  return subclass;
}

template <typename T>
void append(std::vector<T>& all, std::span<const T> more) {
  all.insert(all.end(), more.begin(), more.end());
}

bool set_wrapped_number(ScalarRecord& record, const c10::IValue& value) {
  const std::optional<trace::WrappedNumber> number = trace::wrapped_number(value);
  if (!number) return false;
  if (const auto* flag = std::get_if<bool>(&*number)) return record.value = *flag, true;
  if (const auto* count = std::get_if<std::int64_t>(&*number)) return record.value = *count, true;
  if (const auto* real = std::get_if<double>(&*number)) return record.value = *real, true;
  return false;  // complex
}

}  // namespace

TraceRecorder::TraceRecorder(TraceRecorderOptions options) : options_(std::move(options)) {
  // Enough for a small step, and small enough that malloc does not map and unmap pages for it.
  trace_.ops_.reserve(256);
  trace_.tensors_.reserve(1024);
  trace_.dims_.reserve(4096);
}

// What was added since the last call belongs to the operation that runs, or to nobody.
void TraceRecorder::settle(Running* running, bool everywhere) {
  if (options_.new_nodes) {
    const auto nodes = new_nodes(everywhere);
    if (running == nullptr) {
      foreign_nodes_ += nodes.size();
    } else {
      append(running->nodes, nodes);
    }
  }
  if (options_.new_blocks) {
    const auto blocks = options_.new_blocks();
    if (running != nullptr) append(running->blocks, blocks);
  }
}

std::span<const void* const> TraceRecorder::new_nodes(bool everywhere) const {
  return everywhere && options_.new_nodes_everywhere ? options_.new_nodes_everywhere() : options_.new_nodes();
}

bool TraceRecorder::runs_alone(const OpSpan& op) const {
  std::uint64_t around = op.around;
  for (auto running = running_.rbegin(); running != running_.rend(); ++running) {
    if (running->number != around) return false;
    around = running->around;
  }
  return true;
}

void TraceRecorder::on_op_begin(const OpSpan& op) {
  const bool alone = runs_alone(op);
  // What others have left on other streams is none of a collective's.
  settle(alone && !running_.empty() ? &running_.back() : nullptr, op.info->collective);

  OpRecord record{.info = op.info};
  record.sequence = op.sequence;
  if (alone && !running_.empty()) record.around = static_cast<std::int32_t>(running_.back().index);
  record.backward = op.backward != nullptr;
  record.forward_sequence = op.backward != nullptr ? op.backward->sequence : -1;
  record.scope = scope_index(op.scopes);
  record.host_read = trace::reads_on_host(*op.info, op.inputs);

  record.first_input = static_cast<std::uint32_t>(trace_.tensors_.size());
  add_tensors(op.inputs, op, false);
  record.inputs = static_cast<std::uint32_t>(trace_.tensors_.size()) - record.first_input;
  record.first_scalar = static_cast<std::uint32_t>(trace_.scalars_.size());
  add_scalars(op.inputs);
  record.scalars = static_cast<std::uint32_t>(trace_.scalars_.size()) - record.first_scalar;
  if (op.info->seeded && options_.random_position) record.random_numbers = options_.random_position();
  record.stream = stream_of(op.inputs);
  record.opaque = may_run_other_work(op) || !alone;
  if (!alone) {  // nodes of both may get mixed up
    for (const Running& running : running_) trace_.ops_[running.index].opaque = true;
  }

  running_.push_back({.number = op.number, .around = op.around, .index = trace_.ops_.size()});
  trace_.ops_.push_back(record);
  if (options_.call_sites) trace_.sites_.push_back(trace::CallSite::here());
}

void TraceRecorder::on_op_end(const OpSpan& op) {
  std::optional<Running> ended = end_of(op.number);
  if (!ended) return;  // its begin was lost by a throw on the way
  OpRecord& record = trace_.ops_[ended->index];
  record.first_output = static_cast<std::uint32_t>(trace_.tensors_.size());
  add_tensors(op.outputs, op, true);
  record.outputs = static_cast<std::uint32_t>(trace_.tensors_.size()) - record.first_output;
  if (op.info->seeded && options_.random_position) {
    record.random_numbers = options_.random_position() - record.random_numbers;
  }
  record.first_node = static_cast<std::uint32_t>(trace_.nodes_.size());
  append(trace_.nodes_, std::span<const void* const>(ended->nodes));
  if (options_.new_nodes) append(trace_.nodes_, new_nodes(op.info->collective));
  record.nodes = static_cast<std::uint32_t>(trace_.nodes_.size()) - record.first_node;
  record.first_block = static_cast<std::uint32_t>(trace_.blocks_.size());
  append(trace_.blocks_, std::span<const ByteSpan>(ended->blocks));
  if (options_.new_blocks) append(trace_.blocks_, options_.new_blocks());
  record.blocks = static_cast<std::uint32_t>(trace_.blocks_.size()) - record.first_block;
}

void TraceRecorder::add_tensors(c10::ArrayRef<c10::IValue> values, const OpSpan& op, bool results) {
  const bool statistics = !results && op.info->writes_statistics(values);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const bool written = !results && (op.info->writes[i] || (statistics && op.info->running_statistic[i]));
    trace::for_each_tensor(values[i], [&](const at::Tensor& tensor) {
      TensorRecord record;
      record.argument = static_cast<std::int16_t>(i);
      record.dtype = tensor.scalar_type();
      record.device = tensor.device();
      record.version = version_of(tensor);
      record.storage = is_plain(tensor) ? trace::storage_of(tensor) : nullptr;
      record.shape = static_cast<std::uint32_t>(trace_.dims_.size());
      if (is_plain(tensor)) {
        record.address = trace::address_of(tensor);
        record.span_bytes = trace::span_bytes_of(tensor);
        record.rank = static_cast<std::uint16_t>(tensor.dim());
        trace_.dims_.insert(trace_.dims_.end(), tensor.sizes().begin(), tensor.sizes().end());
        trace_.dims_.insert(trace_.dims_.end(), tensor.strides().begin(), tensor.strides().end());
      }
      const bool made_now = results && op.memory->makes(op, trace::storage_of(tensor));
      record.made_in_step = made_now || op.memory->made(tensor);
      record.written = written || made_now;
      record.number = tensor.unsafeGetTensorImpl()->is_wrapped_number();
      trace_.tensors_.push_back(record);
    });
  }
}

void TraceRecorder::add_scalars(c10::ArrayRef<c10::IValue> inputs) {
  const auto add = [&](std::size_t argument, const c10::IValue& value) {
    ScalarRecord record{.argument = static_cast<std::int16_t>(argument), .value = std::int64_t{0}};
    if (value.isInt())
      record.value = value.toInt();
    else if (value.isDouble())
      record.value = value.toDouble();
    else if (value.isBool())
      record.value = value.toBool();
    else if (!set_wrapped_number(record, value))
      return;
    trace_.scalars_.push_back(record);
  };
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].isList() && !inputs[i].isTensorList()) {
      for (const c10::IValue& entry : inputs[i].toListRef()) add(i, entry);
    } else {
      add(i, inputs[i]);
    }
  }
}

std::uint32_t TraceRecorder::scope_index(std::span<const std::string> scopes) {
  if (std::equal(scopes.begin(), scopes.end(), last_scopes_.begin(), last_scopes_.end())) return last_scope_;
  last_scopes_.assign(scopes.begin(), scopes.end());
  std::string joined;
  for (const std::string& scope : scopes) joined += (joined.empty() ? "" : "/") + scope;
  const auto known = std::find(trace_.scopes_.begin(), trace_.scopes_.end(), joined);
  last_scope_ = static_cast<std::uint32_t>(known - trace_.scopes_.begin());
  if (known == trace_.scopes_.end()) trace_.scopes_.push_back(joined);
  return last_scope_;
}

std::optional<TraceRecorder::Running> TraceRecorder::end_of(std::uint64_t number) {
  const auto entry = std::find_if(running_.rbegin(), running_.rend(),
                                  [&](const Running& running) { return running.number == number; });
  if (entry == running_.rend()) return std::nullopt;
  Running ended = std::move(*entry);
  running_.erase(std::next(entry).base());
  return ended;
}

}  // namespace pianola

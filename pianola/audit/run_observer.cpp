#include <pianola/audit/run_observer.hpp>

#include <pianola/audit/generator_position.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <c10/core/CPUAllocator.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <string_view>

namespace pianola::auditing {
namespace {

using trace::OpSpan;

constexpr std::int64_t kFewElements = 64;
constexpr std::size_t kFewBytes = 1024;

std::uint32_t index_of(std::vector<std::string>& names, std::string_view name) {
  if (names.back() == name) return static_cast<std::uint32_t>(names.size() - 1);
  const auto known = std::find(names.begin(), names.end(), name);
  const auto index = static_cast<std::uint32_t>(known - names.begin());
  if (known == names.end()) names.emplace_back(name);
  return index;
}

bool is_copy(const OpSpan& op) { return op.info->name == "aten::_to_copy" || op.info->name == "aten::copy_"; }

// `x[i] = 2` makes a tensor of the number and gives it to one of these; other memory that no operation made may be what
// compiled code computed.
bool is_assignment(const OpSpan& op) {
  return op.info->name == "aten::fill_.Tensor" || op.info->name == "aten::index_put_" ||
         op.info->name == "aten::copy_" || op.info->name == "aten::masked_fill_.Tensor";
}

bool is_foreign(const c10::Storage& storage) {
  if (!storage.device().is_cpu() || storage.data() == nullptr) return false;
  const c10::DeleterFnPtr deleter = storage.data_ptr().get_deleter();
  return deleter != c10::GetDefaultCPUAllocator()->raw_deleter() && deleter != c10::GetCPUAllocator()->raw_deleter();
}

// A cast that the user asked for is called "aten::to"; one of autocast's happens inside the operation that needs it.
bool is_autocast_cast(const OpSpan& op, const at::Tensor& source) {
  return op.info->name == "aten::_to_copy" && !op.callers.empty() &&
         std::string_view(op.callers.front()) != "aten::to" && source.requires_grad() && source.is_leaf() &&
         at::autocast::is_autocast_cache_enabled();
}

// Whether what autocast caches outlives its innermost region: the cache is emptied where the outermost one ends.
bool is_inside_autocast() {
  at::autocast::increment_nesting();
  return at::autocast::decrement_nesting() > 0;
}

bool caches_casts() {
  return at::autocast::is_autocast_cache_enabled() &&
         (at::autocast::is_autocast_enabled(c10::kCPU) || at::autocast::is_autocast_enabled(c10::kCUDA));
}

// Of a copy in another dtype that autograd knows of, the parameter; what autocast's cache holds looks so.
const void* parameter_of_copy(const at::Tensor& tensor) {
  if (tensor.is_leaf() || !tensor.requires_grad() || tensor.is_view()) return nullptr;
  const auto& node = tensor.grad_fn();
  if (node == nullptr || node->name() != "ToCopyBackward0" || node->num_outputs() == 0) return nullptr;
  const auto* const leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(node->next_edge(0).function.get());
  return leaf == nullptr ? nullptr : trace::storage_of(leaf->variable);
}

}  // namespace

RunObserver::RunObserver(const TraceRecorder& recorder, LeafWatch& leaves, std::span<const at::Generator> known,
                         trace::WriteSet* written, const ObservedRun* like)
    : recorder_(recorder), leaves_(leaves), written_(written), like_(like), cuda_in_use_(cuda_is_in_use()) {
  if (like != nullptr) {
    run_.notes.reserve(like->notes.size());
    run_.outside.reserve(like->outside.size());
    run_.outside_at.reserve(like->outside.size());
  }
  made_.reserve(like != nullptr ? like->notes.size() : 256);
  for (const at::Generator& generator : known) generators_.push_back({generator, position_of(generator)});
  run_.gradients = leaves.at_begin();
  run_.anomaly_at_begin = torch::autograd::AnomalyMode::is_enabled();
  run_.cached_autocast_at_begin = caches_casts();
}

void RunObserver::on_op_begin(const OpSpan& op) {
  const auto ops = recorder_.trace().ops();
  if (ops.size() == run_.notes.size()) {  // the recorder had no memory for it
    if (written_ != nullptr) written_->on_op_begin(op);
    return;
  }
  const auto index = static_cast<std::uint32_t>(ops.size() - 1);
  running_.emplace_back(op.number, index);
  OpNote note;
  if (!op.callers.empty()) note.caller = op.callers.front();
  note.module = open_modules_.back();
  if (op.backward != nullptr) note.node = index_of(run_.nodes, op.backward->name);
  run_.notes.resize(ops.size());
  run_.notes.back() = note;
  if (torch::autograd::AnomalyMode::is_enabled() && !run_.anomaly_op) run_.anomaly_op = index;
  if (op.info->seeded) note_generators(op, index);
  if (ops.back().opaque) blank_.clear();
  visit_inputs(op, index, ops.back());
  if (written_ != nullptr) save_writes(op, ops.back());
}

// What compiled code allocated in the step is not the state of anybody: to save it would keep it alive.
void RunObserver::save_writes(const OpSpan& op, const OpRecord& record) {
  const auto records = recorder_.trace().inputs(record);
  const auto is_scratch = [&](const TensorRecord& seen) {
    if (!seen.written || seen.made_in_step) return false;
    const OutsideMemory* outside = run_.find_outside(seen.storage);
    return outside != nullptr && outside->made_by_host;
  };
  if (std::none_of(records.begin(), records.end(), is_scratch)) return written_->on_op_begin(op);
  written_->save_writes(false);
  written_->on_op_begin(op);  // gradients alone
  written_->save_writes(true);
  std::size_t ordinal = 0;
  for (const c10::IValue& value : op.inputs) {
    trace::for_each_tensor(value, [&](const at::Tensor& tensor) {
      if (ordinal >= records.size()) return;
      const TensorRecord& seen = records[ordinal++];
      if (seen.written && !seen.made_in_step && seen.storage != nullptr && !is_scratch(seen)) {
        written_->save(tensor.storage());
      }
    });
  }
}

void RunObserver::visit_inputs(const OpSpan& op, std::uint32_t index, const OpRecord& record) {
  const auto records = recorder_.trace().inputs(record);
  const bool copies = is_copy(op);
  const bool lifts = op.info->name == "aten::lift_fresh";
  const bool assigns = is_assignment(op);
  std::uint32_t ordinal = 0;
  for (const c10::IValue& value : op.inputs) {
    trace::for_each_tensor(value, [&](const at::Tensor& tensor) {
      if (ordinal >= records.size()) return;
      const TensorRecord& seen = records[ordinal];
      if (seen.storage == nullptr) blank_.clear();  // a wrapper may write any memory
      if (seen.storage != nullptr && !seen.number) {
        if (!seen.made_in_step) visit_outside(tensor, index, ordinal, seen.written || lifts, assigns);
        if (lifts) {
          const OutsideMemory* outside = run_.find_outside(seen.storage);
          note_values(tensor, index, ordinal, outside != nullptr && outside->made_by_host && tensor.dim() == 0);
          std::erase(blank_, seen.storage);
        } else if (!blank_.empty()) {
          visit_blank(op, tensor, index, ordinal, seen.written);
        }
        if (copies) note_copy(op, tensor, run_.notes.back());
      }
      ++ordinal;
    });
  }
}

void RunObserver::visit_outside(const at::Tensor& tensor, std::uint32_t index, std::uint32_t ordinal, bool written,
                                bool assigns) {
  const c10::Storage& storage = tensor.storage();
  const auto [entry, is_new] =
      run_.outside_at.insert({storage.unsafeGetStorageImpl(), static_cast<std::uint32_t>(run_.outside.size())});
  if (is_new) {
    OutsideMemory outside;
    outside.memory = Memory::of(tensor);
    outside.data = storage.data();
    outside.bytes = storage.nbytes();
    outside.device = tensor.device();
    outside.first_op = index;
    outside.tensor = tensor.is_leaf() ? tensor.unsafeGetTensorImpl() : nullptr;
    outside.requires_grad = tensor.requires_grad();
    outside.converted = parameter_of_copy(tensor);
    const OutsideMemory* before = like_ == nullptr ? nullptr : like_->find_outside(outside.memory.identity);
    if (before != nullptr && before->data == outside.data) {
      outside.foreign = before->foreign;
    } else {
      outside.made_by_host = was_allocated(storage);
      outside.foreign = !outside.made_by_host && is_foreign(storage);
    }
    if (!written && (outside.foreign || (assigns && outside.made_by_host && tensor.dim() == 0))) {
      note_values(tensor, index, ordinal, outside.made_by_host);
    }
    if (outside.made_by_host) made_.push_back({outside.memory, index});
    run_.outside.push_back(std::move(outside));
  }
  OutsideMemory& outside = run_.outside[entry->second];
  if (outside.leaf == nullptr && tensor.requires_grad() && tensor.is_leaf()) {
    outside.leaf = tensor.unsafeGetTensorImpl();
    leaves_.note(tensor);
  }
}

// Whether the memory is torch's, allocated in this run. Somebody else's may lie where torch's lay and was freed; what looks
// foreign may be another view of memory that is still held (through NumPy, DLPack).
bool RunObserver::was_allocated(const c10::Storage& storage) {
  const void* const data = storage.data();
  if (data == nullptr || !allocations_.contains(data)) return false;
  return !is_foreign(storage) || std::any_of(made_.begin(), made_.end(), [&](const Made& made) {
    const auto held = made.memory.storage.lock();
    return held && held->data() == data;
  });
}

// What an `empty` made and the host filled, element by element: no operation tells its values.
void RunObserver::visit_blank(const OpSpan& op, const at::Tensor& tensor, std::uint32_t index, std::uint32_t ordinal,
                              bool written) {
  const void* storage = trace::storage_of(tensor);
  if (std::find(blank_.begin(), blank_.end(), storage) == blank_.end()) return;
  if (!written && (op.info->is_view || op.info->is_empty)) return;
  // Operators of others do not always mark what they write: the memory may be blank still.
  if (!written && op.info->name.starts_with("aten::")) note_values(tensor, index, ordinal, false);
  std::erase(blank_, storage);
}

void RunObserver::note_values(const at::Tensor& tensor, std::uint32_t index, std::uint32_t ordinal, bool number) {
  if (tensor.unsafeGetTensorImpl()->key_set().has(c10::DispatchKey::Python)) return;  // a fake one has no memory
  if (!tensor.device().is_cpu() || tensor.numel() > kFewElements || tensor.numel() == 0) return;
  if (tensor.nbytes() > kFewBytes || !tensor.is_contiguous() || tensor._is_zerotensor()) return;
  const auto* const first = static_cast<const char*>(tensor.const_data_ptr());
  run_.host_values.push_back({.op = index,
                              .tensor = ordinal,
                              .dtype = tensor.scalar_type(),
                              .bytes = {first, tensor.nbytes()},
                              .number = number});
}

void RunObserver::note_copy(const OpSpan& op, const at::Tensor& source, OpNote& note) const {
  if (is_autocast_cast(op, source)) note.autocast_cast = true;
  if (!cuda_in_use_ || !source.device().is_cpu() || note.pinned_host || trace::storage_of(source) == nullptr) return;
  note.pinned_host = at::globalContext().isPinnedPtr(source.storage().data(), c10::kCUDA);
}

void RunObserver::note_generators(const OpSpan& op, std::uint32_t index) {
  check_positions(index);
  for (const c10::IValue& value : op.inputs) {
    if (!value.isGenerator() || !value.toGenerator().defined()) continue;
    const at::Generator& used = value.toGenerator();
    const bool known = std::any_of(generators_.begin(), generators_.end(),
                                   [&](const WatchedGenerator& watched) { return watched.generator == used; });
    if (!known) run_.unknown_generators.push_back(index);
  }
}

void RunObserver::check_positions(std::optional<std::uint32_t> before_op) {
  for (WatchedGenerator& watched : generators_) {
    const std::uint64_t now = position_of(watched.generator);
    if (now == watched.position) continue;
    watched.position = now;
    run_.generator_moves.push_back({.before_op = before_op, .device = watched.generator.device()});
  }
}

void RunObserver::take_positions() {
  for (WatchedGenerator& watched : generators_) watched.position = position_of(watched.generator);
}

void RunObserver::on_op_end(const OpSpan& op) {
  if (written_ != nullptr) written_->on_op_end(op);
  const auto entry =
      std::find_if(running_.rbegin(), running_.rend(), [&](const auto& running) { return running.first == op.number; });
  if (entry == running_.rend()) return;
  const std::uint32_t index = entry->second;
  running_.erase(std::next(entry).base());
  if (op.info->seeded) take_positions();

  const auto records = recorder_.trace().outputs(recorder_.trace().ops()[index]);
  std::size_t ordinal = 0;
  for (const c10::IValue& value : op.outputs) {
    trace::for_each_tensor(value, [&](const at::Tensor& tensor) {
      if (ordinal >= records.size()) return;
      const TensorRecord& seen = records[ordinal++];
      if (!seen.written || seen.storage == nullptr) return;  // nothing new
      made_.push_back({Memory::of(tensor), index});
      if (op.info->is_empty && seen.device.is_cpu() && tensor.numel() <= kFewElements) blank_.push_back(seen.storage);
    });
  }
}

void RunObserver::enter_module(const std::string& path) { open_modules_.push_back(index_of(run_.modules, path)); }

void RunObserver::leave_module() {
  if (open_modules_.size() > 1) open_modules_.pop_back();
}

ObservedRun RunObserver::take() {
  check_positions(std::nullopt);
  run_.autocast_stays = caches_casts() || is_inside_autocast();
  for (Made& made : made_) {
    if (made.memory.alive()) {
      run_.survivors.push_back({.memory = std::move(made.memory), .op = made.op});
    } else {
      run_.gone.push_back(std::move(made.memory.storage));
    }
  }
  made_.clear();
  for (OutsideMemory& outside : run_.outside) outside.alive_at_end = outside.memory.alive();
  leaves_.at_end(run_.gradients);
  return std::move(run_);
}

}  // namespace pianola::auditing

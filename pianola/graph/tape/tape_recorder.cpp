#include <pianola/graph/tape/tape.hpp>

#include <pianola/trace/alias.hpp>
#include <pianola/trace/host_read.hpp>
#include <pianola/trace/quiet_scope.hpp>
#include <pianola/trace/step_memory.hpp>
#include <pianola/trace/tensors_of.hpp>
#include <pianola/trace/uses_values.hpp>

#include <algorithm>
#include <iterator>
#include <set>

namespace pianola::graph {
namespace {

// A number of the host is a value: what the step does with its memory later is not for replays to see.
c10::IValue alias_of_input(const trace::OpSpan& op, const c10::IValue& value, trace::ArgumentAliases& aliases) {
  const bool is_number = value.isTensor() && value.toTensor().defined() && op.memory->is_host_number(value.toTensor());
  if (!is_number) return aliases.of(value);
  const trace::QuietScope quiet;
  return value.toTensor().clone();
}

using Storages = std::set<const c10::StorageImpl*>;

Storages fresh_memory_of(const TapeOp& op) {
  Storages fresh;
  for (const auto& [output, position] : op.fresh)
    fresh.insert(trace::storage_of(tensor_at(op.outputs[output], position)));
  return fresh;
}

Storages written_memory_of(const TapeOp& op) {
  Storages written;
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    if (!op.info->writes[i]) continue;
    trace::for_each_tensor(op.inputs[i], [&](const at::Tensor& tensor) { written.insert(trace::storage_of(tensor)); });
  }
  return written;
}

bool overlap(const Storages& one, const Storages& other) {
  return std::any_of(one.begin(), one.end(), [&](const c10::StorageImpl* storage) { return other.contains(storage); });
}

bool reads(const TapeOp& op, const Storages& memory) {
  bool found = false;
  for (const c10::IValue& value : op.inputs) {
    trace::for_each_tensor(
        value, [&](const at::Tensor& tensor) { found = found || memory.contains(trace::storage_of(tensor)); });
  }
  return found;
}

// Whether one of the operations makes or writes what the operation around it returns or writes.
bool do_the_work_of(const TapeOp& around, const std::vector<TapeOp>& called) {
  const Storages results = fresh_memory_of(around), written = written_memory_of(around);
  return std::any_of(called.begin(), called.end(), [&](const TapeOp& op) {
    return overlap(fresh_memory_of(op), results) || overlap(written_memory_of(op), written);
  });
}

// Note [The order of what a kernel for autograd calls]
// What it calls runs around the kernel that computes: the clone of what mul_ overwrites before it, a hook on the saved
// result after it (see Note [Calls of a kernel for autograd] in trace/op_info.cpp). Whether that kernel has run shows in the
// version of what it writes, and in the results, which nobody can read before. Where neither shows, nothing that the one
// does meets what the other does. A kernel for autograd that excludes autograd nowhere may do all the work by what it
// calls: then the operation around it has nothing to add, and to run it too would be once too often.
std::vector<TapeOp> in_order(TapeOp op, std::vector<TapeOp> called, std::optional<std::size_t> computed_at) {
  if (do_the_work_of(op, called)) return called;
  const Storages results = fresh_memory_of(op);
  const auto reader =
      std::find_if(called.begin(), called.end(), [&](const TapeOp& one) { return reads(one, results); });
  const auto place =
      std::min(reader - called.begin(), static_cast<std::ptrdiff_t>(computed_at.value_or(called.size())));
  called.insert(called.begin() + place, std::move(op));
  return called;
}

}  // namespace

bool TapeRecorder::Running::has_written() const {
  return std::any_of(written.begin(), written.end(),
                     [](const auto& tensor) { return tensor.first.current_version() != tensor.second; });
}

TapeRecorder::Running* TapeRecorder::find(std::uint64_t number) {
  const auto found = std::find_if(running_.rbegin(), running_.rend(),
                                  [&](const Running& running) { return running.number == number; });
  return found == running_.rend() ? nullptr : &*found;
}

void TapeRecorder::on_op_begin(const trace::OpSpan& op) {
  if (!under_way_.empty() && trace::uses_values(*op.info)) note_arrivals(op.inputs);
  if (Running* around = find(op.around); around != nullptr && !around->computed_at && around->has_written()) {
    around->computed_at = around->called.size();
  }
  Running running{.number = op.number, .op = {.handle = op.info->handle, .inputs = {}, .outputs = {}}};
  running.op.info = op.info;
  running.op.answers = op.info->host_read == trace::HostRead::always && !trace::reads_on_host(*op.info, op.inputs);
  running.op.number = ++begun_;
  running.op.inputs.reserve(op.inputs.size());
  trace::ArgumentAliases aliases;
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    running.op.inputs.push_back(alias_of_input(op, op.inputs[i], aliases));
    if (!op.info->writes[i]) continue;
    trace::for_each_tensor(op.inputs[i], [&](const at::Tensor& tensor) {
      const c10::VariableVersion& version = tensor.unsafeGetTensorImpl()->version_counter();
      if (version.enabled()) running.written.emplace_back(version, version.current_version());
    });
  }
  running_.push_back(std::move(running));
}

void TapeRecorder::on_op_end(const trace::OpSpan& op) {
  Running* const found = find(op.number);
  if (found == nullptr) return;
  Running ended = std::move(*found);
  running_.erase(running_.begin() + (found - running_.data()));
  // It threw, and the step may live with that: a replay has nothing to run but what it called.
  const bool threw = op.outputs.empty() && !op.info->schema().returns().empty();
  if (threw) return put(std::move(ended.called), op.around);
  add_results(ended, op);
  if (op.info->collective) note_collective(ended.op);
  if (ended.called.empty() && op.around == 0) return tape_.add(std::move(ended.op));
  put(in_order(std::move(ended.op), std::move(ended.called), ended.computed_at), op.around);
}

// Most are done by now; see Note [Collectives that are observed].
void TapeRecorder::note_collective(TapeOp& op) {
  op.communication = std::make_shared<Communication>();
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    if (!op.info->writes[i]) continue;
    trace::for_each_tensor(op.inputs[i],
                           [&](const at::Tensor& tensor) { op.communication->written.push_back(tensor); });
  }
  if (op.info->done_by_wait) {
    under_way_.push_back(op.communication);
  } else {
    op.communication->note_arrival();
  }
  op.outputs.clear();  // a Work, and what it wrote
  op.fresh.clear();
}

// The host's code has waited for what an operation uses.
void TapeRecorder::note_arrivals(c10::ArrayRef<c10::IValue> used) {
  const trace::MemoryRanges memory = memory_of(used);
  std::erase_if(under_way_, [&](const std::shared_ptr<Communication>& one) {
    if (!memory_of(one->written).overlap(memory)) return false;
    one->note_arrival();
    return true;
  });
}

Tape TapeRecorder::take() {
  for (const auto& one : std::exchange(under_way_, {})) one->note_arrival();
  return std::move(tape_);
}

void TapeRecorder::add_results(Running& running, const trace::OpSpan& op) {
  for (std::size_t i = 0; i < op.outputs.size(); ++i) {
    const c10::IValue& value = op.outputs[i];
    running.op.outputs.push_back(trace::alias_values(value));
    const auto note_fresh = [&](const c10::IValue& result, std::int64_t position) {
      if (!result.isTensor() || !result.toTensor().defined()) return;
      if (op.memory->makes(op, trace::storage_of(result.toTensor()))) running.op.fresh.emplace_back(i, position);
    };
    if (!value.isList()) {
      note_fresh(value, -1);
      continue;
    }
    std::int64_t position = 0;
    for (const c10::IValue& result : value.toListRef()) note_fresh(result, position++);
  }
}

// Behind what the operation around them has called so far, or at the end of the tape.
void TapeRecorder::put(std::vector<TapeOp> ops, std::uint64_t around) {
  if (Running* const outer = find(around); outer != nullptr) {
    outer->called.insert(outer->called.end(), std::move_iterator(ops.begin()), std::move_iterator(ops.end()));
    return;
  }
  for (TapeOp& op : ops) tape_.add(std::move(op));
}

}  // namespace pianola::graph

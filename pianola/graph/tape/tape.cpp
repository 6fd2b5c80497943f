#include <pianola/graph/tape/tape.hpp>

#include <pianola/core/error.hpp>
#include <pianola/trace/quiet_scope.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/flat_hash_map.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <mutex>
#include <set>
#include <utility>

namespace pianola::graph {
namespace {

// Its shape depends on values, and the tape's operations after it are for the shape of the capture.
[[noreturn]] void refuse_shape(const TapeOp& op, const at::Tensor& target, const at::Tensor& result) {
  throw UsageError(
      {.what = fmt::format("a result of {} has the shape [{}] in a replay, and had [{}] in the capture",
                           op.info->schema().name(), fmt::join(result.sizes(), ", "), fmt::join(target.sizes(), ", ")),
       .fix = "let shapes in the step depend on shapes alone, or leave this part out of the capture",
       .rule = "PG103"});
}

// The step has gone the way that the answer led. Only NaNs change one that was recorded: see trace/host_read.cpp.
[[noreturn]] void refuse_answer(const TapeOp& op) {
  throw UsageError(
      {.what = fmt::format("{} has another answer in a replay than in the capture: a tensor that the step compares "
                           "with itself holds NaN in one of them",
                           op.info->schema().name()),
       .fix = "find what makes NaN, or run such inputs eagerly",
       .rule = "PG101"});
}

// Moves a new result into the memory that the recording gave it. A zero tensor of autograd's has none, and nothing changes
// it.
void place(const TapeOp& op, const at::Tensor& target, const at::Tensor& result) {
  if (target.sizes() != result.sizes()) [[unlikely]]
    refuse_shape(op, target, result);
  if (target.numel() == 0 || target._is_zerotensor()) return;
  if (target.strides() == result.strides() && target.is_non_overlapping_and_dense() &&
      trace::bytes_are_values(target) && trace::bytes_are_values(result)) {
    std::memcpy(target.mutable_data_ptr(), result.const_data_ptr(), target.nbytes());
  } else {
    target.copy_(result);
  }
}

thread_local const ReplayWatch::OnEnd* replay_watch = nullptr;

// The tapes of all threads.
class LiveTapes {
 public:
  static LiveTapes& instance() {
    static LiveTapes& live = *new LiveTapes;  // never destroyed: a static Graph may end after it
    return live;
  }

  void add(const Tape& tape) {
    const std::lock_guard lock(mutex_);
    tapes_.push_back(&tape);
  }

  void remove(const Tape& tape) {
    const std::lock_guard lock(mutex_);
    std::erase(tapes_, &tape);
  }

  template <typename Visit>
  void for_each_op(const Visit& visit) {
    const std::lock_guard lock(mutex_);
    for (const Tape* tape : tapes_) {
      for (const TapeOp& op : tape->ops()) visit(op);
    }
  }

 private:
  std::mutex mutex_;
  std::vector<const Tape*> tapes_;
};

// How many tensors of tapes look at each memory.
class AliasCounts {
 public:
  void add(const TapeOp& op) {
    for (const auto* values : {&op.inputs, &op.outputs}) {
      for (const c10::IValue& value : *values) {
        trace::for_each_tensor(value, [&](const at::Tensor& tensor) {
          if (seen_.insert(tensor.unsafeGetTensorImpl()).second) ++counts_[trace::storage_of(tensor)];
        });
      }
    }
  }
  [[nodiscard]] std::size_t of(const c10::StorageImpl* storage) const { return counts_.at(storage); }

 private:
  ska::flat_hash_set<const c10::TensorImpl*> seen_;
  ska::flat_hash_map<const c10::StorageImpl*, std::size_t> counts_;
};

}  // namespace

LiveTape::LiveTape(const Tape& tape) : tape_(tape) { LiveTapes::instance().add(tape_); }
LiveTape::~LiveTape() { LiveTapes::instance().remove(tape_); }

bool is_made_by_a_tape(const at::Tensor& tensor) {
  const c10::StorageImpl* storage = trace::storage_of(tensor);
  if (storage == nullptr || !tensor.is_cpu()) return false;
  bool made = false;
  LiveTapes::instance().for_each_op([&](const TapeOp& op) {
    for (const auto& [output, position] : op.fresh) {
      made = made || trace::storage_of(tensor_at(op.outputs[output], position)) == storage;
    }
  });
  return made;
}

// Note [What may be poisoned]
// The memory of a fresh result was made by one operation of the tape: those before it cannot read it, and it writes all
// of the result at each replay. Memory that was only allocated (empty) is not among them, nor what an operation writes
// into a tensor that it was given. Another tape may read it, and even replay first, as a step does that carries a value
// over to the next: such a value is held by a tensor of the user's, so that memory with other holders than tapes is left
// alone. On CUDA it is the same by nature: a value that no tensor holds lies in memory that the next capture is given.
void poison_tapes(std::span<const at::Tensor> results) {
  const trace::QuietScope quiet;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  LiveTapes& tapes = LiveTapes::instance();
  AliasCounts aliases;
  tapes.for_each_op([&](const TapeOp& op) { aliases.add(op); });
  ska::flat_hash_set<const c10::StorageImpl*> chosen;
  for (const at::Tensor& result : results) chosen.insert(trace::storage_of(result));
  tapes.for_each_op([&](const TapeOp& op) {
    for (const auto& [output, position] : op.fresh) {
      const at::Tensor& target = tensor_at(op.outputs[output], position);
      const c10::StorageImpl* storage = trace::storage_of(target);
      if ((!target.is_floating_point() && !target.is_complex()) || target._is_zerotensor()) continue;
      const bool only_tapes_hold_it = target.storage().use_count() == aliases.of(storage);
      if (only_tapes_hold_it || chosen.count(storage) != 0) target.fill_(std::numeric_limits<double>::quiet_NaN());
    }
  });
}

namespace {

// The pages that lie inside, of memory that the heap took for itself alone.
std::size_t drop_pages(const c10::StorageImpl& storage) {
  static const auto kPage = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(storage.data());
  const std::uintptr_t first = (begin + kPage - 1) / kPage * kPage;
  const std::uintptr_t end = (begin + storage.nbytes()) / kPage * kPage;
  if (begin == 0 || end <= first) return 0;
  return madvise(reinterpret_cast<void*>(first), end - first, MADV_DONTNEED) == 0 ? end - first : 0;
}

}  // namespace

// Of each tape by itself: what another one reads has another holder.
void Tape::find_results() {
  AliasCounts aliases;
  for (const TapeOp& op : ops_) aliases.add(op);
  ska::flat_hash_set<const c10::StorageImpl*> seen;
  for (const TapeOp& op : ops_) {
    for (const auto& [output, position] : op.fresh) {
      const at::Tensor& target = tensor_at(op.outputs[output], position);
      const c10::StorageImpl* const storage = trace::storage_of(target);
      if (storage == nullptr || target._is_zerotensor() || !target.is_cpu()) continue;
      if (seen.insert(storage).second) results_.push_back({.tensor = target, .aliases = aliases.of(storage)});
    }
  }
}

std::size_t drop_scratch(std::span<const Tape* const> tapes) {
  std::size_t bytes = 0;
  for (const Tape* const tape : tapes) {
    for (const TapeResult& result : tape->results()) {
      if (result.is_scratch()) bytes += drop_pages(*trace::storage_of(result.tensor));
    }
  }
  return bytes;
}

std::size_t scratch_bytes(std::span<const Tape* const> tapes) {
  std::size_t bytes = 0;
  for (const Tape* const tape : tapes) {
    for (const TapeResult& result : tape->results()) {
      if (result.is_scratch()) bytes += result.tensor.storage().nbytes();
    }
  }
  return bytes;
}

ReplayWatch::ReplayWatch(OnEnd on_end) : on_end_(std::move(on_end)), outer_(replay_watch) { replay_watch = &on_end_; }
ReplayWatch::~ReplayWatch() { replay_watch = outer_; }

std::size_t Tape::index_of(std::size_t call) const {
  return call < index_of_call_.size() ? index_of_call_[call] : ops_.size();
}

bool Tape::has_argument(std::size_t call, std::size_t argument) const {
  const std::size_t index = index_of(call);
  if (index == ops_.size()) return false;
  const TapeOp& op = ops_[index];
  return op.is_copy ? argument == 0 && op.inputs.size() > 1 : argument < op.inputs.size();
}

void Tape::set_argument(std::size_t call, std::size_t argument, const c10::IValue& value) {
  TapeOp& op = ops_.at(index_of(call));
  op.inputs.at(op.is_copy ? argument + 1 : argument) = value;
}

void Tape::replay_calls(std::size_t first, std::size_t last) {
  const auto from = [&](std::size_t call) {
    return static_cast<std::size_t>(
        std::find_if(ops_.begin(), ops_.end(), [&](const TapeOp& op) { return op.number >= call; }) - ops_.begin());
  };
  replay(from(first), from(last + 1));
}

void Tape::repeat_recorded_call(bool repeat) {
  repeats_recorded_call_ = repeat;
  if (!repeat) forget_recorded_call();
}

void Tape::forget_recorded_call() {
  if (!std::exchange(knows_recorded_call_, false)) return;
  for (const TapeOp& op : ops_) {
    if (op.communication != nullptr) op.communication->arrived.clear();
  }
}

// Leaves the results on the stack.
void Tape::call(const TapeOp& op) {
  if (!pending_.empty()) [[unlikely]]
    pending_.settle(op.inputs);
  if (repeats_recorded_call_ && op.communication != nullptr) {
    for (std::size_t i = 0; i < op.communication->written.size(); ++i) {
      at::Tensor(op.communication->written[i]).copy_(op.communication->arrived.at(i));
    }
    return;
  }
  stack_.insert(stack_.end(), op.inputs.begin(), op.inputs.end());
  if (op.communication == nullptr) return op.handle.callBoxed(stack_);
  const std::string& name = op.handle.schema().name();
  communicate(name, [&] { op.handle.callBoxed(stack_); });
  pending_.add(name, op.inputs, stack_);
}

void Tape::replay(std::size_t begin, std::size_t end) {
  if (!repeats_recorded_call_) forget_recorded_call();
  const trace::QuietScope quiet;
  // The aliases have no history: go straight to the kernels.
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  SettingsOfOps settings;
  for (std::size_t i = begin; i < end; ++i) {
    const TapeOp& op = ops_[i];
    settings.enter(op.settings);
    try {
      call(op);
      if (op.answers && stack_.back().toBool() != op.outputs.front().toBool()) [[unlikely]]
        refuse_answer(op);
      if (!op.writes_results) {
        for (const auto& [output, position] : op.fresh) {
          place(op, tensor_at(op.outputs[output], position), tensor_at(stack_[output], position));
        }
      }
    } catch (...) {
      failed_ = &op;
      stack_.clear();
      pending_.forget();
      throw;
    }
    stack_.clear();
    if (replay_watch != nullptr) [[unlikely]] {
      pending_.settle_all();
      (*replay_watch)(op);
    }
  }
  pending_.settle_all();
}

std::map<std::string, std::size_t> Tape::count_by_operator() const {
  std::map<std::string, std::size_t> counts;
  for (const TapeOp& op : ops_) ++counts[op.info->name];
  return counts;
}

std::size_t Tape::result_bytes() const {
  std::set<const c10::StorageImpl*> seen;
  std::size_t bytes = 0;
  for (const TapeOp& op : ops_) {
    for (const auto& [output, position] : op.fresh) {
      const c10::StorageImpl* storage = trace::storage_of(tensor_at(op.outputs[output], position));
      if (storage != nullptr && storage->data() != nullptr && seen.insert(storage).second) bytes += storage->nbytes();
    }
  }
  return bytes;
}

}  // namespace pianola::graph

#pragma once
#include <pianola/core/error.hpp>
#include <pianola/trace/collective_work.hpp>
#include <pianola/trace/memory_ranges.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <fmt/format.h>

#include <exception>
#include <string_view>
#include <vector>

namespace pianola::graph {

// Note [Collectives on the tape]
// A collective of torch.distributed begins, and its Work is waited for by the host's code, of which a replay knows nothing. So a
// replay waits before the first operation that uses the memory of the collective, and at its end: eager code has waited by then, or
// it would read what has not arrived.
//
// The tape records while the step runs, and the collectives of this run are those that the other ranks take part in. A call that is
// captured and then replayed must not communicate twice: its replay takes what has arrived in the recording.

/// What a collective on a tape writes, and what has arrived there in the recording, until that is taken or forgotten.
struct Communication {
  std::vector<at::Tensor> written;
  std::vector<at::Tensor> arrived = {};  ///< Copies of `written`; empty: there are none any more.

  void note_arrival();
};

[[nodiscard]] trace::MemoryRanges memory_of(c10::ArrayRef<at::Tensor> tensors);
[[nodiscard]] trace::MemoryRanges memory_of(c10::ArrayRef<c10::IValue> values);

/// Calls `work`, which communicates. @param name  Of the operator.
/// @throws CommunicationError  It failed: another rank has ended, say.
template <typename Work>
void communicate(std::string_view name, const Work& work) {
  try {
    work();
  } catch (const std::exception& error) {
    throw CommunicationError(
        {.what = fmt::format("{} of a replay failed: {}", name, error.what()),
         .fix = "look at the rank that did something else, or has ended; start all ranks again from a "
                "checkpoint"});
  }
}

/// Collectives that a replay has begun, and waits for when somebody needs what they write.
class PendingWork {
 public:
  /// @param name  Of the operator; it outlives this.
  void add(std::string_view name, c10::ArrayRef<c10::IValue> inputs, c10::ArrayRef<c10::IValue> outputs);
  /// Waits for those that use the memory of these values.
  /// @throws CommunicationError  A collective failed: another rank has ended, say.
  void settle(c10::ArrayRef<c10::IValue> values);
  void settle_all();
  [[nodiscard]] bool empty() const noexcept { return all_.empty(); }
  /// Waits for nothing more.
  void forget() noexcept { all_.clear(); }

 private:
  struct One {
    std::string_view name;
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
    trace::MemoryRanges memory;
  };

  static void wait(const One& one);

  std::vector<One> all_;  // in the order in which they began
};

}  // namespace pianola::graph

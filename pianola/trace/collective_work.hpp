#pragma once
#include <pianola/trace/op_info.hpp>
#include <pianola/trace/op_stream.hpp>
#include <pianola/trace/storage_set.hpp>

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

namespace pianola::trace {

/// The handles that a collective of torch.distributed returned, by which the host waits for it. One of NCCL that is not
/// asynchronous returns none.
[[nodiscard]] std::vector<c10::intrusive_ptr<c10d::Work>> works_of(c10::ArrayRef<c10::IValue> outputs);

// Note [Collectives that are observed]
// What a Work's Future calls when the collective is done (hooks of DistributedDataParallel that compress, `then`) runs on a thread
// of the process group, or on the thread that registers it if the collective is done by then. A stream sees the second alone. So
// the end of a collective of the CPU is waited for before anybody can register something.
//
// Of some collectives of Gloo the end is where the host's code waits: messages, and reduce_scatter, whose Work reduces into buffers of
// its own and copies from them in wait(), at each call of it (torch 2.11, ProcessGroupGloo.cpp). Nobody is shown these copies, since who
// repeats the collective has a Work that makes its own. What has arrived is known when an operation first uses it, or at the end of
// the step.

// Two ranks that begin collectives in other orders would wait for each other here, which without an observer they do not. So the wait
// ends after a while. Where a run like it has been observed before, it does not: another rank is late, and its process group knows for
// how long to wait.

/// Whether a call's end is waited for, by waits_until_done(). Messages and barriers are done only when the host's code waits for them.
[[nodiscard]] bool is_waited_for(const OpInfo& op, c10::ArrayRef<c10::IValue> inputs);
/// Waits. @return  False: it is not done after a while, because another rank has not come so far.
[[nodiscard]] bool waits_until_done(c10::ArrayRef<c10::IValue> outputs, ForRanks patience = ForRanks::a_while);

/// The memory out of which the host's wait copies into the results of collectives. Of several threads: by a lock of the caller's.
class CollectiveBuffers {
 public:
  /// Whether a call is such a collective, and so what it allocates inside is such memory.
  [[nodiscard]] static bool are_made_by(const OpInfo& op, c10::ArrayRef<c10::IValue> inputs);
  /// What a call inside it allocated.
  void note(c10::ArrayRef<c10::IValue> allocated);
  /// Whether a call with these inputs reads such memory.
  [[nodiscard]] bool are_read_by(c10::ArrayRef<c10::IValue> inputs) const;

 private:
  StorageSet buffers_;
};

/// Whether this thread is one on which a process group of Gloo or MPI runs its collectives. Such a thread is given the state of the
/// thread that called; what it does is inside of the collective.
[[nodiscard]] bool belongs_to_a_process_group() noexcept;

/// The collectives of GPUs that a run begins.
///
/// A process group of NCCL keeps a collective's tensors until somebody waits for its Work, or else until the next collective.
/// Where a run waits for its Future, as a hook of DistributedDataParallel does, they would seem to be kept by the run.
class BegunCollectives final : public OpObserver {
 public:
  void on_op_begin(const OpSpan& op) override;
  void on_op_end(const OpSpan& op) override;
  /// Lets the process group drop what it keeps, as if the run had waited for each Work: of NCCL the stream waits, and the host only
  /// where TORCH_NCCL_BLOCKING_WAIT is set.
  void let_go() noexcept;

 private:
  std::mutex mutex_;                        // of backward passes' threads
  std::unordered_set<std::uint64_t> open_;  // operations
  std::vector<c10::intrusive_ptr<c10d::Work>> works_;
};

}  // namespace pianola::trace

#pragma once
#include <cstddef>
#include <limits>

namespace pianola {

/// CaptureOptions::branches: four lanes where a trial finds them faster, else the graph as captured. No graph is taken that was not
/// timed, so none is made where a trial could do harm, on the tape, or without a trace. All such graphs of the process together take
/// at most 256 MiB of a device, or a tenth of the most that was allocated there at once, whichever is more; and each no more than
/// ParallelOptions::memory_limit.
inline constexpr int kAutoBranches = std::numeric_limits<int>::min();

/// How CaptureOptions::branches goes about its work. The defaults suit most steps.
struct ParallelOptions {
  /// cuBLAS workspaces that matrix products take in turn, so that they need not wait for each other's; 32 MiB each on
  /// Hopper. 0: as many as branches. 1: one for all, as torch has it. Shared by all graphs of a pool.
  int workspaces = 0;
  /// Memory that the step frees is not used again for this many operations, and for four times as many once the step has
  /// run backward: reuse orders what is independent. 0: torch's own reuse, which needs the least memory and costs
  /// inference most of what branches gain.
  int reuse_delay = 16;
  /// Split every operation of several kernels by the addresses in their arguments, not only those that work on lists of
  /// tensors. Gains a little for transformers; a kernel that reaches memory by another's pointer would be missed.
  bool split_kernels = false;
  /// Most bytes that workspaces and delayed reuse together may take beyond what a plain capture takes.
  std::size_t memory_limit = std::size_t{1} << 30U;
  /// Replay both graphs a few times at the end of the capture, two dozen at most, and keep the one as captured unless the
  /// rebuilt one is at least 2 % faster; what the replays write is put back, and copies of it are not under memory_limit.
  /// Off, and if such a trial could do harm (BranchInfo::untimed says why): a rebuilt graph that is proved right is used.
  bool self_check = true;
  /// The step has run before on what its inputs hold now, so a capture with warmup = 0 may be timed, too.
  bool warmed_up = false;
};

}  // namespace pianola

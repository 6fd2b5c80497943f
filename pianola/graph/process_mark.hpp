#pragma once

namespace pianola::graph {

/// Remembers the process that it was made in. A child that was forked off it has the same memory, but not the device:
/// graphs, pools and streams of the parent are of no use to it. Costs one comparison to ask.
class ProcessMark {
 public:
  ProcessMark() noexcept;
  [[nodiscard]] bool is_this_process() const noexcept { return forks_ == forks_so_far_; }
  /// Whether what was made with the mark may give its device memory back. Not in a forked child. Not in exit() when it destroys static
  /// objects: torch's thread-locals are gone by then, the current streams among them, and calls of CUDA are undefined (CUDA C++
  /// Programming Guide, "Initialization"); the driver frees all that a process leaves. Nor on a thread whose thread-locals have ended.
  [[nodiscard]] bool may_clean_up() const noexcept;

 private:
  static int forks_so_far_;  // of this process since its first ancestor, counted in the child
  int forks_;
};

}  // namespace pianola::graph

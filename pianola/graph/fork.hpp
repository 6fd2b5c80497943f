#pragma once

namespace pianola::graph {

/// Remembers the process that it was made in. A child that was forked off it has the same memory, but not the device:
/// graphs, pools and streams of the parent are of no use to it. Costs one comparison to ask.
class ProcessMark {
 public:
  ProcessMark() noexcept;
  [[nodiscard]] bool is_this_process() const noexcept { return forks_ == forks_so_far_; }

 private:
  static int forks_so_far_;  // of this process since its first ancestor, counted in the child
  int forks_;
};

}  // namespace pianola::graph

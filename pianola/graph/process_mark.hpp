#pragma once
#include <type_traits>

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

/// A thread-local of this type is destroyed before all that are older. When it has been, this thread ends nothing any more that needs
/// them; see end_made_with().
class ThreadEnd {
 public:
  ThreadEnd() noexcept {}  // NOLINT(modernize-use-equals-default): else nobody makes it
  ThreadEnd(const ThreadEnd&) = delete;
  ThreadEnd& operator=(const ThreadEnd&) = delete;
  ~ThreadEnd();
};

/// Calls `end(owned)`, which gives device memory back: at once, but
/// - never in a forked child, nor in exit() when it destroys static objects. Torch's thread-locals are gone by then, the current streams
///   among them, and calls of CUDA are undefined (CUDA C++ Programming Guide, "Initialization"); the driver frees all that a process
///   leaves.
/// - behind the end of this thread, where its thread-locals are being destroyed, and those that `end` needs may be gone.
/// @param mark  Made before, or together with `owned`.
void end_made_with(const ProcessMark& mark, void* owned, void (*end)(void* owned) noexcept) noexcept;

/// The same, and deletes it.
template <typename T>
void end_made_with(const ProcessMark& mark, T* owned) noexcept {
  end_made_with(mark, const_cast<std::remove_const_t<T>*>(owned),
                [](void* one) noexcept { delete static_cast<T*>(one); });
}

}  // namespace pianola::graph

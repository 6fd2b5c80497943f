#pragma once
#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace pianola::trace {

// Note [Memory that no operation made]
// Not all of a step's tensors are results of operations: torch turns numbers into tensors without one, and code that
// torch.compile wrote allocates by itself. Only the allocator tells such memory from a tensor of somebody else's. On
// the CPU a forwarding allocator is put before torch's while a run is observed; on CUDA torch's own hook is used, which
// allocators other than torch's native one have not: their memory then looks like a tensor from outside.

/// Torch's allocator handed out a block, or got one back that may be handed out again.
struct AllocatorEvent {
  bool freed = false;
  c10::Device device = c10::Device(c10::kCPU);
  std::uintptr_t address = 0;
  std::size_t bytes = 0;  ///< As asked for. Of a freed block of the CPU 0.
  c10::MempoolId_t pool = {0, 0};
  std::uintptr_t stream = 0;  ///< Of CUDA: that asked for it.
};

class AllocatorListener {
 public:
  virtual ~AllocatorListener() = default;
  /// Called on the thread that asks for memory or frees it, by several threads at once, and under locks of the allocator: it must
  /// neither allocate device memory nor begin or end a watch. What it throws is kept for AllocatorWatch::check().
  virtual void on_memory(const AllocatorEvent& event) = 0;
};

/// While it lives, shows a listener what torch's allocators do. The listener lives as long.
class AllocatorWatch {
 public:
  enum class Of {
    cpu,   ///< What the CPU's allocator hands out to this thread.
    cuda,  ///< What CUDA's hands out to all threads, and what it got back. May end on another thread than it began on.
    all_devices,  ///< Both.
    with_frees,   ///< And what the CPU's got back of what it handed out meanwhile, from whichever thread.
  };
  AllocatorWatch(AllocatorListener& listener, Of of);
  AllocatorWatch(const AllocatorWatch&) = delete;
  AllocatorWatch& operator=(const AllocatorWatch&) = delete;
  ~AllocatorWatch();

  /// @throws OutOfMemoryError  The host had no memory to note an event.
  void check() const;

  /// Shows open watches a block of CUDA memory that Pianola itself hands out inside one of torch's, or gets back.
  static void tell_of_cuda(const AllocatorEvent& event);

  /// Whether watches that are open see what the CPU's allocator hands out: not where somebody has put in one with a priority.
  [[nodiscard]] static bool sees_the_cpu();
  /// And what it gets back: only where it is torch's.
  [[nodiscard]] static bool sees_frees_of_the_cpu();
  /// Whether they see CUDA's allocator: not before it was first used, and not another than torch's native one.
  [[nodiscard]] static bool sees_cuda() noexcept;

 private:
  friend struct OpenWatches;
  void show(const AllocatorEvent& event) noexcept;

  AllocatorListener& listener_;
  Of of_;
  AllocatorWatch* outer_ = nullptr;  // of this thread
  std::atomic<bool> lost_ = false;   // an event
};

/// While it lives, what this thread is handed out is Pianola's own: of no step.
class OwnMemory {
 public:
  OwnMemory() noexcept { ++depth(); }
  OwnMemory(const OwnMemory&) = delete;
  OwnMemory& operator=(const OwnMemory&) = delete;
  ~OwnMemory() { --depth(); }
  [[nodiscard]] static bool is_asked_for() noexcept { return depth() != 0; }

 private:
  static int& depth() noexcept;
};

}  // namespace pianola::trace

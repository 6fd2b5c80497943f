#pragma once
#include <pianola/core/export.hpp>

#include <c10/core/Device.h>

#include <memory>

namespace pianola {

/// While it lives, finds out who takes memory of a device outside of torch's allocator: CUDA's context, and what libraries and kernels
/// take when they first run. After each operation of this thread and of its backward passes it asks the driver what is left, so a step
/// runs slower meanwhile, once. process_memory() has what it found, also when it is over.
///
///     const pianola::MemoryWatch watch(device);  // before CUDA is first used
///     train_step(batch);
///
/// On the CPU it does nothing. It may be destroyed on another thread than the one that made it, in any order with others, and in a capture.
class PIANOLA_API MemoryWatch {
 public:
  /// Makes the device's context where there is none.
  /// @throws DeviceError  There is no such device. UsageError: a capture is open on this thread.
  explicit MemoryWatch(c10::Device device);
  MemoryWatch(const MemoryWatch&) = delete;
  MemoryWatch& operator=(const MemoryWatch&) = delete;
  ~MemoryWatch();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pianola

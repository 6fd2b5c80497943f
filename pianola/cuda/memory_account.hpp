#pragma once
#include <pianola/cuda/driver.hpp>

#include <cstddef>
#include <cstdint>

namespace pianola {

/// Memory of the current context's device.
struct DeviceMemory {
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
};

/// @throws DeviceError  There is no current context.
[[nodiscard]] DeviceMemory device_memory(const Driver& driver = Driver::get());

/// How much device memory a piece of work took, as the device sees it: what the driver itself holds, such as
/// executables of graphs, is in it, and appears in no account of torch's allocator.
///
///     const MemoryAccount account;
///     Executable exec = Executable::instantiate(graph);
///     std::int64_t bytes = account.taken_bytes();
///
/// It is the difference of two readings of free memory. So it comes in steps of what the driver takes at once (2 MiB,
/// as a rule), is 0 where the driver had room left, and includes what torch's allocator and other threads and processes
/// on the device took or gave back meanwhile.
class MemoryAccount {
 public:
  /// @throws DeviceError  There is no current context.
  explicit MemoryAccount(const Driver& driver = Driver::get());

  /// Bytes taken since construction; negative where more was given back. @throws DeviceError
  [[nodiscard]] std::int64_t taken_bytes() const;

 private:
  const Driver* driver_;
  std::size_t free_before_;
};

}  // namespace pianola

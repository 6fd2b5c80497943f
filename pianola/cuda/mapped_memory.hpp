#pragma once
#include <pianola/cuda/driver.hpp>

#include <cstddef>
#include <cstdint>

namespace pianola {

/// Device memory at addresses that stay: what lies there may go back to the driver and come again.
///
/// Threads:  One call at a time, from any thread.
class MappedMemory {
 public:
  /// Takes the addresses, and memory for them. @param bytes  At least; the driver has units, of 2 MiB as a rule.
  /// @throws OutOfMemoryError, DeviceError
  MappedMemory(int device, std::size_t bytes, const Driver& driver = Driver::get());
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;
  ~MappedMemory();

  /// Memory for the addresses; what lies in it is undefined. Nothing where there is some. @throws OutOfMemoryError, DeviceError
  void map();
  /// Gives the memory back. No work may use it any more. Nothing where there is none. @throws DeviceError
  void unmap();

  [[nodiscard]] std::uintptr_t address() const noexcept { return static_cast<std::uintptr_t>(address_); }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] int device() const noexcept { return device_; }
  [[nodiscard]] bool is_mapped() const noexcept { return is_mapped_; }

 private:
  const Driver* driver_;
  int device_;
  std::size_t bytes_ = 0;
  CUdeviceptr address_ = 0;
  bool is_mapped_ = false;
};

}  // namespace pianola

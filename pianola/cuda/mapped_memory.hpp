#pragma once
#include <pianola/cuda/driver.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace pianola {

/// Addresses of a device, for memory that comes later.
class ReservedAddresses {
 public:
  /// @param bytes  At least; the driver has units, of 2 MiB as a rule. @throws OutOfMemoryError, DeviceError
  ReservedAddresses(int device, std::size_t bytes, const Driver& driver = Driver::get());
  ReservedAddresses(const ReservedAddresses&) = delete;
  ReservedAddresses& operator=(const ReservedAddresses&) = delete;
  ~ReservedAddresses();

  [[nodiscard]] std::uintptr_t begin() const noexcept { return static_cast<std::uintptr_t>(begin_); }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::size_t unit() const noexcept { return unit_; }
  [[nodiscard]] int device() const noexcept { return device_; }
  [[nodiscard]] const Driver& driver() const noexcept { return *driver_; }

 private:
  const Driver* driver_;
  int device_;
  std::size_t unit_ = 0, bytes_ = 0;
  CUdeviceptr begin_ = 0;
};

/// Device memory at addresses that stay: what lies there may go back to the driver and come again.
///
/// Threads:  One call at a time, from any thread.
class MappedMemory {
 public:
  /// Takes the addresses, and memory for them. @param bytes  At least; the driver has units, of 2 MiB as a rule.
  /// @throws OutOfMemoryError, DeviceError
  MappedMemory(int device, std::size_t bytes, const Driver& driver = Driver::get());
  /// Takes memory for addresses that were reserved before, whole units from `offset` on, which nobody else has mapped.
  /// @throws OutOfMemoryError  Also where they do not reach so far. DeviceError
  MappedMemory(std::shared_ptr<const ReservedAddresses> addresses, std::size_t offset, std::size_t bytes);
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;
  ~MappedMemory();

  /// Memory for the addresses; what lies in it is undefined. Nothing where there is some. @throws OutOfMemoryError, DeviceError
  void map();
  /// Gives the memory back. No work may use it any more. Nothing where there is none. @throws DeviceError
  void unmap();

  [[nodiscard]] std::uintptr_t address() const noexcept { return static_cast<std::uintptr_t>(address_); }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] int device() const noexcept { return addresses_->device(); }
  [[nodiscard]] bool is_mapped() const noexcept { return is_mapped_; }

 private:
  std::shared_ptr<const ReservedAddresses> addresses_;
  std::size_t bytes_;
  CUdeviceptr address_;
  bool is_mapped_ = false;
};

}  // namespace pianola

#pragma once
#include <pianola/cuda/driver.hpp>

#include <cstddef>
#include <cstdint>

namespace pianola {

/// What cuMemCreate makes: a device's memory without an address. What is mapped holds it, so that the handle may go.
class DeviceMemoryHandle {
 public:
  /// @param bytes  Whole units of the driver's. @throws OutOfMemoryError, DeviceError
  DeviceMemoryHandle(int device, std::size_t bytes, const Driver& driver = Driver::get());
  DeviceMemoryHandle(const DeviceMemoryHandle&) = delete;
  DeviceMemoryHandle& operator=(const DeviceMemoryHandle&) = delete;
  ~DeviceMemoryHandle() { driver_.mem_release(handle_); }

  /// All of it, at addresses that are reserved, and that nothing is mapped at. @throws OutOfMemoryError, DeviceError
  void map_at(std::uintptr_t address) const;

  /// How such memory is made, on a device.
  static CUmemAllocationProp properties(int device);
  /// The device may read and write what is mapped there. @throws OutOfMemoryError, DeviceError
  static void allow_access(int device, std::uintptr_t address, std::size_t bytes, const Driver& driver = Driver::get());

 private:
  const Driver& driver_;
  std::size_t bytes_;
  CUmemGenericAllocationHandle handle_ = 0;
};

/// Of a call that asked for so many bytes. @throws OutOfMemoryError, DeviceError
void check_room(CUresult code, const char* call, std::size_t bytes);

}  // namespace pianola

#include <pianola/cuda/memory_account.hpp>

#include <pianola/cuda/error_codes.hpp>

namespace pianola {

DeviceMemory device_memory(const Driver& driver) {
  DeviceMemory memory;
  check(driver.mem_get_info(&memory.free_bytes, &memory.total_bytes), "cuMemGetInfo");
  return memory;
}

MemoryAccount::MemoryAccount(const Driver& driver) : driver_(&driver), free_before_(device_memory(driver).free_bytes) {}

std::int64_t MemoryAccount::taken_bytes() const {
  return static_cast<std::int64_t>(free_before_) - static_cast<std::int64_t>(device_memory(*driver_).free_bytes);
}

}  // namespace pianola

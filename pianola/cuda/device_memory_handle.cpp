#include <pianola/cuda/device_memory_handle.hpp>

#include <pianola/core/out_of_memory_error.hpp>
#include <pianola/cuda/error_codes.hpp>

#include <fmt/format.h>

namespace pianola {

DeviceMemoryHandle::DeviceMemoryHandle(int device, std::size_t bytes, const Driver& driver)
    : driver_(driver), bytes_(bytes) {
  const CUmemAllocationProp wanted = properties(device);
  check_room(driver.mem_create(&handle_, bytes, &wanted, 0), "cuMemCreate", bytes);
}

void DeviceMemoryHandle::map_at(std::uintptr_t address) const {
  check_room(driver_.mem_map(static_cast<CUdeviceptr>(address), bytes_, 0, handle_, 0), "cuMemMap", bytes_);
}

CUmemAllocationProp DeviceMemoryHandle::properties(int device) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  return properties;
}

void DeviceMemoryHandle::allow_access(int device, std::uintptr_t address, std::size_t bytes, const Driver& driver) {
  CUmemAccessDesc access = {};
  access.location = properties(device).location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  check_room(driver.mem_set_access(static_cast<CUdeviceptr>(address), bytes, &access, 1), "cuMemSetAccess", bytes);
}

void check_room(CUresult code, const char* call, std::size_t bytes) {
  if (code != CUDA_ERROR_OUT_OF_MEMORY) return check(code, call);
  throw OutOfMemoryError({.what = fmt::format("the device has no {} bytes left", bytes),
                          .fix = "free memory of the device, other processes' too; torch.cuda.empty_cache() helps",
                          .rule = "PG908"});
}

}  // namespace pianola

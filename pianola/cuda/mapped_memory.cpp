#include <pianola/cuda/mapped_memory.hpp>

#include <pianola/core/out_of_memory_error.hpp>
#include <pianola/cuda/error_codes.hpp>

#include <fmt/format.h>

namespace pianola {
namespace {

CUmemAllocationProp memory_of(int device) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  return properties;
}

void check_room(CUresult code, const char* call, std::size_t bytes) {
  if (code != CUDA_ERROR_OUT_OF_MEMORY) return check(code, call);
  throw OutOfMemoryError({.what = fmt::format("the device has no {} bytes left", bytes),
                          .fix = "free memory of the device, other processes' too; torch.cuda.empty_cache() helps",
                          .rule = "PG908"});
}

}  // namespace

MappedMemory::MappedMemory(int device, std::size_t bytes, const Driver& driver) : driver_(&driver), device_(device) {
  const CUmemAllocationProp properties = memory_of(device);
  std::size_t unit = 0;
  check(driver.mem_get_allocation_granularity(&unit, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
        "cuMemGetAllocationGranularity");
  bytes_ = (bytes + unit - 1) / unit * unit;
  check_room(driver.mem_address_reserve(&address_, bytes_, unit, 0, 0), "cuMemAddressReserve", bytes_);
  try {
    map();
  } catch (...) {
    driver.mem_address_free(address_, bytes_);
    throw;
  }
}

MappedMemory::~MappedMemory() {
  if (is_mapped_) driver_->mem_unmap(address_, bytes_);
  driver_->mem_address_free(address_, bytes_);
}

// The mapping holds the memory: its handle may go at once.
void MappedMemory::map() {
  if (is_mapped_) return;
  const CUmemAllocationProp properties = memory_of(device_);
  CUmemGenericAllocationHandle handle = 0;
  check_room(driver_->mem_create(&handle, bytes_, &properties, 0), "cuMemCreate", bytes_);
  const CUresult mapped = driver_->mem_map(address_, bytes_, 0, handle, 0);
  driver_->mem_release(handle);
  check_room(mapped, "cuMemMap", bytes_);
  CUmemAccessDesc access = {};
  access.location = properties.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  const CUresult allowed = driver_->mem_set_access(address_, bytes_, &access, 1);
  if (allowed != CUDA_SUCCESS) driver_->mem_unmap(address_, bytes_);
  check_room(allowed, "cuMemSetAccess", bytes_);
  is_mapped_ = true;
}

void MappedMemory::unmap() {
  if (!is_mapped_) return;
  check(driver_->mem_unmap(address_, bytes_), "cuMemUnmap");
  is_mapped_ = false;
}

}  // namespace pianola

#include <pianola/cuda/mapped_memory.hpp>

#include <pianola/core/out_of_memory_error.hpp>
#include <pianola/cuda/error_codes.hpp>

#include <fmt/format.h>

#include <utility>

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

constexpr std::size_t in_whole(std::size_t unit, std::size_t bytes) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

ReservedAddresses::ReservedAddresses(int device, std::size_t bytes, const Driver& driver)
    : driver_(&driver), device_(device) {
  const CUmemAllocationProp properties = memory_of(device);
  check(driver.mem_get_allocation_granularity(&unit_, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
        "cuMemGetAllocationGranularity");
  bytes_ = in_whole(unit_, bytes);
  check_room(driver.mem_address_reserve(&begin_, bytes_, unit_, 0, 0), "cuMemAddressReserve", bytes_);
}

ReservedAddresses::~ReservedAddresses() { driver_->mem_address_free(begin_, bytes_); }

MappedMemory::MappedMemory(int device, std::size_t bytes, const Driver& driver)
    : MappedMemory(std::make_shared<const ReservedAddresses>(device, bytes, driver), 0, bytes) {}

MappedMemory::MappedMemory(std::shared_ptr<const ReservedAddresses> addresses, std::size_t offset, std::size_t bytes)
    : addresses_(std::move(addresses)),
      bytes_(in_whole(addresses_->unit(), bytes)),
      address_(static_cast<CUdeviceptr>(addresses_->begin() + offset)) {
  if (offset + bytes_ > addresses_->bytes()) {
    throw OutOfMemoryError({.what = fmt::format("{} bytes do not fit behind the first {} of {} bytes of addresses",
                                                bytes_, offset, addresses_->bytes()),
                            .fix = "let go of graphs of the pool, or capture into another one",
                            .rule = "PG908"});
  }
  map();
}

MappedMemory::~MappedMemory() {
  if (is_mapped_) addresses_->driver().mem_unmap(address_, bytes_);
}

// The mapping holds the memory: its handle may go at once.
void MappedMemory::map() {
  if (is_mapped_) return;
  const Driver& driver = addresses_->driver();
  const CUmemAllocationProp properties = memory_of(device());
  CUmemGenericAllocationHandle handle = 0;
  check_room(driver.mem_create(&handle, bytes_, &properties, 0), "cuMemCreate", bytes_);
  const CUresult mapped = driver.mem_map(address_, bytes_, 0, handle, 0);
  driver.mem_release(handle);
  check_room(mapped, "cuMemMap", bytes_);
  CUmemAccessDesc access = {};
  access.location = properties.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  const CUresult allowed = driver.mem_set_access(address_, bytes_, &access, 1);
  if (allowed != CUDA_SUCCESS) driver.mem_unmap(address_, bytes_);
  check_room(allowed, "cuMemSetAccess", bytes_);
  is_mapped_ = true;
}

void MappedMemory::unmap() {
  if (!is_mapped_) return;
  check(addresses_->driver().mem_unmap(address_, bytes_), "cuMemUnmap");
  is_mapped_ = false;
}

}  // namespace pianola

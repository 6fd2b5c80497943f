#include <pianola/cuda/mapped_memory.hpp>

#include <pianola/core/out_of_memory_error.hpp>
#include <pianola/cuda/device_memory_handle.hpp>
#include <pianola/cuda/error_codes.hpp>

#include <fmt/format.h>

#include <utility>

namespace pianola {
namespace {

constexpr std::size_t in_whole(std::size_t unit, std::size_t bytes) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

ReservedAddresses::ReservedAddresses(int device, std::size_t bytes, const Driver& driver)
    : driver_(&driver), device_(device) {
  const CUmemAllocationProp properties = DeviceMemoryHandle::properties(device);
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
  DeviceMemoryHandle(device(), bytes_, driver).map_at(address());
  try {
    DeviceMemoryHandle::allow_access(device(), address(), bytes_, driver);
  } catch (...) {
    driver.mem_unmap(address_, bytes_);
    throw;
  }
  is_mapped_ = true;
}

void MappedMemory::unmap() {
  if (!is_mapped_) return;
  check(addresses_->driver().mem_unmap(address_, bytes_), "cuMemUnmap");
  is_mapped_ = false;
}

}  // namespace pianola

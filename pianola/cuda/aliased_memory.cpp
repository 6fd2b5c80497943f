#include <pianola/cuda/aliased_memory.hpp>

#include <pianola/cuda/device_memory_handle.hpp>

#include <algorithm>

namespace pianola {
namespace {

constexpr std::size_t kLeastPiece = std::size_t{2} << 20U;  // the driver's unit, as a rule

constexpr std::size_t piece_of(std::size_t bytes) {
  const std::size_t least = (bytes + AliasedMemory::kMostMappings - 1) / AliasedMemory::kMostMappings;
  return std::max((least + kLeastPiece - 1) / kLeastPiece, std::size_t{1}) * kLeastPiece;
}

constexpr std::size_t in_pieces(std::size_t bytes) {
  return (bytes + piece_of(bytes) - 1) / piece_of(bytes) * piece_of(bytes);
}

}  // namespace

AliasedMemory::AliasedMemory(int device, std::size_t bytes, const Driver& driver)
    : piece_(piece_of(bytes)), addresses_(device, in_pieces(bytes), driver) {
  try {
    const DeviceMemoryHandle memory(device, piece_, driver);
    for (; mapped_ * piece_ < addresses_.bytes(); ++mapped_) memory.map_at(addresses_.begin() + mapped_ * piece_);
    DeviceMemoryHandle::allow_access(device, addresses_.begin(), addresses_.bytes(), driver);
  } catch (...) {
    unmap();
    throw;
  }
}

AliasedMemory::~AliasedMemory() { unmap(); }

void AliasedMemory::unmap() noexcept {
  for (; mapped_ != 0; --mapped_) {
    addresses_.driver().mem_unmap(static_cast<CUdeviceptr>(addresses_.begin() + (mapped_ - 1) * piece_), piece_);
  }
}

}  // namespace pianola

#pragma once
#include <pianola/cuda/mapped_memory.hpp>

#include <cstddef>
#include <cstdint>

namespace pianola {

/// Many device addresses with little memory behind them: the same bytes lie at all. For work that is recorded and never run, which only
/// needs addresses that the driver takes for memory.
///
/// Source:   CUDA C++ Programming Guide, "Virtual Aliasing Support".
/// Threads:  One call at a time, from any thread.
class AliasedMemory {
 public:
  /// Addresses that the memory is mapped at are so many at most: of more bytes each has more memory behind it.
  static constexpr std::size_t kMostMappings = 2048;

  /// @param bytes  Of addresses, at least. @throws OutOfMemoryError, DeviceError
  AliasedMemory(int device, std::size_t bytes, const Driver& driver = Driver::get());
  AliasedMemory(const AliasedMemory&) = delete;
  AliasedMemory& operator=(const AliasedMemory&) = delete;
  ~AliasedMemory();

  [[nodiscard]] std::uintptr_t address() const noexcept { return addresses_.begin(); }
  /// Of addresses.
  [[nodiscard]] std::size_t bytes() const noexcept { return addresses_.bytes(); }
  /// Of the device's memory.
  [[nodiscard]] std::size_t memory_bytes() const noexcept { return piece_; }

 private:
  void unmap() noexcept;

  std::size_t piece_;
  ReservedAddresses addresses_;
  std::size_t mapped_ = 0;  // pieces
};

}  // namespace pianola

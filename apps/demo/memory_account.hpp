#pragma once
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <optional>

namespace pianola::demo {

/// Torch's account of a device's memory, from now on; there is none for the CPU.
class MemoryAccount {
 public:
  explicit MemoryAccount(c10::Device device) : device_(device) {
    if (device.is_cpu()) return;
    c10::DeviceAllocator* allocator = at::getDeviceAllocator(device.type());
    allocator->resetPeakStats(device.index());
    at_start_ = bytes().current;
  }
  [[nodiscard]] std::optional<std::int64_t> most_beyond_start() const {
    if (device_.is_cpu()) return std::nullopt;
    return bytes().peak - at_start_;
  }

 private:
  [[nodiscard]] c10::CachingAllocator::Stat bytes() const {
    constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    return at::getDeviceAllocator(device_.type())->getDeviceStats(device_.index()).allocated_bytes[kAll];
  }

  c10::Device device_;
  std::int64_t at_start_ = 0;
};

}  // namespace pianola::demo

#include <pianola/graph/cuda/branch_budget.hpp>

#include <c10/cuda/CUDACachingAllocator.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

namespace pianola::graph {
namespace {

constexpr std::size_t kLeast = std::size_t{256} << 20U;
constexpr std::size_t kPart = 10;

struct Taken {
  std::mutex mutex;
  std::map<c10::DeviceIndex, std::size_t> bytes;
};

Taken& taken() {
  static auto* const all = new Taken;  // graphs may outlive static objects
  return *all;
}

std::size_t most_ever_allocated(c10::DeviceIndex device) {
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device);
  const auto all = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return static_cast<std::size_t>(std::max<std::int64_t>(stats.allocated_bytes[all].peak, 0));
}

}  // namespace

BranchBudget::BranchBudget(c10::Device device) : device_(device.index()) {
  const std::size_t limit = std::max(kLeast, most_ever_allocated(device_) / kPart);
  const std::lock_guard lock(taken().mutex);
  std::size_t& others = taken().bytes[device_];
  bytes_ = limit - std::min(limit, others);
  others += bytes_;
}

BranchBudget::BranchBudget(BranchBudget&& other) noexcept
    : device_(other.device_), bytes_(std::exchange(other.bytes_, 0)) {}

BranchBudget& BranchBudget::operator=(BranchBudget&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void BranchBudget::keep(std::size_t bytes) noexcept {
  const std::size_t back = bytes_ - std::min(bytes_, bytes);
  if (back == 0) return;
  const std::lock_guard lock(taken().mutex);
  taken().bytes[device_] -= back;
  bytes_ -= back;
}

}  // namespace pianola::graph

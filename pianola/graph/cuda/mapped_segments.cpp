#include <pianola/graph/cuda/mapped_segments.hpp>

#include <pianola/core/error.hpp>
#include <pianola/core/out_of_memory_error.hpp>
#include <pianola/torch_abi/cuda/forwarding_cuda_allocator.hpp>

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>

#include <iterator>
#include <map>
#include <mutex>
#include <utility>

namespace pianola::graph {

namespace allocator = c10::cuda::CUDACachingAllocator;

namespace {

SegmentsInRange*& range_of_this_thread() {
  thread_local SegmentsInRange* range = nullptr;
  return range;
}

// As long as all of the device's memory. nullptr where the driver has no such addresses.
std::shared_ptr<const ReservedAddresses> reserve_for(int device) {
  std::size_t free = 0, total = 0;
  if (Driver::get().mem_get_info(&free, &total) != CUDA_SUCCESS) return nullptr;
  try {
    return std::make_shared<const ReservedAddresses>(device, total);
  } catch (const OutOfMemoryError&) {
    return nullptr;
  } catch (const DeviceError&) {
    return nullptr;
  }
}

}  // namespace

SegmentsInRange::SegmentsInRange(SegmentRange& range)
    : range_(range), before_(std::exchange(range_of_this_thread(), this)) {}
SegmentsInRange::~SegmentsInRange() { range_of_this_thread() = before_; }
SegmentsInRange* SegmentsInRange::now() noexcept { return range_of_this_thread(); }

// Without addresses for a range it lies anywhere.
std::unique_ptr<MappedMemory> SegmentsInRange::make(int device, std::size_t bytes) {
  if (range_.addresses == nullptr) range_.addresses = reserve_for(device);
  std::unique_ptr<MappedMemory> memory = range_.addresses == nullptr
                                             ? std::make_unique<MappedMemory>(device, bytes)
                                             : std::make_unique<MappedMemory>(range_.addresses, range_.used, bytes);
  if (range_.addresses != nullptr) range_.used += memory->bytes();
  made_ = {.begin = memory->address(), .end = memory->address() + memory->bytes()};
  return memory;
}

#if !PIANOLA_TORCH_AT_LEAST(2, 12) || PIANOLA_TORCH_AT_LEAST(2, 15)

namespace {

// Torch calls it under its own lock.
class SegmentSource final : public torch_abi::ForwardingCudaAllocator {
 public:
  explicit SegmentSource(Base& torchs) : ForwardingCudaAllocator(torchs) {}

  static SegmentSource& instance() {
    static auto* const segments = new SegmentSource(*allocator::get());
    return *segments;
  }

  void* raw_alloc(std::size_t bytes) override {
    try {
      const int device = c10::cuda::current_device();
      SegmentsInRange* const range = SegmentsInRange::now();
      auto memory = range != nullptr ? range->make(device, bytes) : std::make_unique<MappedMemory>(device, bytes);
      const std::lock_guard lock(mutex_);
      const std::uintptr_t address = memory->address();
      all_.emplace(address, std::move(memory));
      return reinterpret_cast<void*>(address);
    } catch (const OutOfMemoryError&) {
      return nullptr;  // torch frees what it has, and asks again
    }
  }

  // As cudaFree does, it waits: the memory is gone at once.
  void raw_delete(void* segment) override {
    const std::lock_guard lock(mutex_);
    const auto found = all_.find(reinterpret_cast<std::uintptr_t>(segment));
    if (found == all_.end()) return;
    const c10::cuda::CUDAGuard on_device(static_cast<c10::DeviceIndex>(found->second->device()));
    if (found->second->is_mapped() && cudaDeviceSynchronize() != cudaSuccess) (void)cudaGetLastError();
    all_.erase(found);
  }

  [[nodiscard]] MappedMemory* find(std::uintptr_t address) {
    const std::lock_guard lock(mutex_);
    const auto found = all_.find(address);
    return found == all_.end() ? nullptr : found->second.get();
  }
  [[nodiscard]] bool has(std::uintptr_t address) {
    const std::lock_guard lock(mutex_);
    const auto after = all_.upper_bound(address);
    return after != all_.begin() && address - std::prev(after)->first < std::prev(after)->second->bytes();
  }

 private:
  std::mutex mutex_;
  std::map<std::uintptr_t, std::unique_ptr<MappedMemory>> all_;
};

}  // namespace

std::shared_ptr<allocator::CUDAAllocator> mapped_segments() {
  return {&SegmentSource::instance(), [](auto*) {}};
}

MappedMemory* mapped_segment(std::uintptr_t address) { return SegmentSource::instance().find(address); }
bool is_in_mapped_segment(std::uintptr_t address) { return SegmentSource::instance().has(address); }

#else

std::shared_ptr<allocator::CUDAAllocator> mapped_segments() { return nullptr; }
MappedMemory* mapped_segment(std::uintptr_t /*address*/) { return nullptr; }
bool is_in_mapped_segment(std::uintptr_t /*address*/) { return false; }

#endif

}  // namespace pianola::graph

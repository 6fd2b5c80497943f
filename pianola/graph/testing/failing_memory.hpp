#pragma once
#include <pianola/graph/testing/device_test.hpp>
#include <pianola/trace/testing/failing_allocator.hpp>

#if PIANOLA_WITH_CUDA
#include <pianola/torch_abi/cuda/forwarding_cuda_allocator.hpp>

#include <c10/cuda/CUDACachingAllocator.h>
#endif

#include <ATen/ops/ones.h>
#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace pianola::testing {

#if PIANOLA_WITH_CUDA
/// Whether tests can let an allocation of CUDA memory fail: not where torch's allocator is not known well enough to stand before it.
inline constexpr bool kCudaMemoryCanFail = torch_abi::kCanForwardCudaAllocator;

#if !PIANOLA_TORCH_AT_LEAST(2, 12) || PIANOLA_TORCH_AT_LEAST(2, 15)
/// Before torch's, and before Pianola's own where that is there already: one allocation finds no memory. Whichever thread asks.
class FailingCudaAllocator final : public torch_abi::ForwardingCudaAllocator {
 public:
  /// Put in at the first call, for the rest of the process: tensors keep a pointer to the allocator that made them.
  static FailingCudaAllocator& instance() {
    static FailingCudaAllocator& one = put_in();
    return one;
  }

  c10::DataPtr allocate(std::size_t bytes) override {
    count(bytes);
    return to_.allocate(bytes);
  }
  void* raw_alloc(std::size_t bytes) override {
    count(bytes);
    return to_.raw_alloc(bytes);
  }
  void* raw_alloc_with_stream(std::size_t bytes, cudaStream_t stream) override {
    count(bytes);
    return to_.raw_alloc_with_stream(bytes, stream);
  }

  void fail_at(int number) {
    has_failed_ = false;
    countdown_ = number;
  }
  [[nodiscard]] bool has_failed() const { return has_failed_; }

 private:
  using ForwardingCudaAllocator::ForwardingCudaAllocator;

  // A capture that plans has Pianola's put in, which would stand before this one else, and hand out blocks that nobody counts.
  static FailingCudaAllocator& put_in() {
    const at::Tensor x = at::ones({8}, c10::Device(c10::kCUDA, 0));
    Graph graph(x.device());
    graph.capture([&] { (void)(x + 1); }, {.warmup = 1, .plan_memory = true});
    namespace allocator = c10::cuda::CUDACachingAllocator;
    auto* const one = new FailingCudaAllocator(*allocator::get());
    allocator::allocator.store(one);
    c10::SetAllocator(c10::kCUDA, one);
    return *one;
  }
  void count(std::size_t bytes) {
    if (bytes == 0 || countdown_ <= 0 || --countdown_ != 0) return;
    has_failed_ = true;
    TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory: none for ", bytes, " bytes, says the test");
  }

  std::atomic<int> countdown_ = 0;
  std::atomic<bool> has_failed_ = false;
};
#endif
#else
inline constexpr bool kCudaMemoryCanFail = false;
#endif

/// While it lives, an allocation of the device can be let fail.
class FailingMemory {
 public:
  explicit FailingMemory(c10::Device device) : is_cuda_(device.is_cuda()) {
    if (!is_cuda_) c10::SetCPUAllocator(&FailingAllocator::of_the_process());
  }
  FailingMemory(const FailingMemory&) = delete;
  FailingMemory& operator=(const FailingMemory&) = delete;
  ~FailingMemory() {
    fail_at(0);
    if (!is_cuda_) c10::SetCPUAllocator(c10::GetDefaultCPUAllocator());
  }

  /// The `number`-th allocation from now on fails; 0: none does. @return  Whether one has since the last call.
  bool fail_at(int number) {
    const bool had_failed = has_failed();
    if (!is_cuda_) FailingAllocator::of_the_process().fail_at(number);
#if PIANOLA_WITH_CUDA && (!PIANOLA_TORCH_AT_LEAST(2, 12) || PIANOLA_TORCH_AT_LEAST(2, 15))
    if (is_cuda_) FailingCudaAllocator::instance().fail_at(number);
#endif
    return had_failed;
  }
  [[nodiscard]] bool has_failed() const {
#if PIANOLA_WITH_CUDA && (!PIANOLA_TORCH_AT_LEAST(2, 12) || PIANOLA_TORCH_AT_LEAST(2, 15))
    if (is_cuda_) return FailingCudaAllocator::instance().has_failed();
#endif
    return FailingAllocator::of_the_process().has_failed();
  }
  /// Blocks of the CPU, or bytes of the GPU.
  [[nodiscard]] std::int64_t in_use() const {
#if PIANOLA_WITH_CUDA
    if (is_cuda_) return c10::cuda::CUDACachingAllocator::getDeviceStats(0).allocated_bytes[0].current;
#endif
    return FailingAllocator::live;
  }

 private:
  bool is_cuda_;
};

/// Of a test on CUDA.
#define PIANOLA_SKIP_WHERE_NO_ALLOCATION_CAN_FAIL() \
  if (on_cuda() && !::pianola::testing::kCudaMemoryCanFail) GTEST_SKIP() << "this torch's allocator is not known"

}  // namespace pianola::testing

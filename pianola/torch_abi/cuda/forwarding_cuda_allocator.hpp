#pragma once
#include <pianola/torch_abi/torch_version.hpp>

#include <c10/cuda/CUDACachingAllocator.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

// An allocator of CUDA memory that hands everything on to another one. What torch asks of such an allocator differs from version to
// version, and what is not handed on is a function of torch's that says "not supported": so only versions that were looked at have it.

namespace pianola::torch_abi {

#if !PIANOLA_TORCH_AT_LEAST(2, 12) || PIANOLA_TORCH_AT_LEAST(2, 15)

inline constexpr bool kCanForwardCudaAllocator = true;

class ForwardingCudaAllocator : public c10::cuda::CUDACachingAllocator::CUDAAllocator {
 public:
  using Base = c10::cuda::CUDACachingAllocator::CUDAAllocator;
  using Device = c10::DeviceIndex;
  using Pool = c10::MempoolId_t;

  /// @param to  Lives as long.
  explicit ForwardingCudaAllocator(Base& to) : to_(to) {}

  c10::DataPtr allocate(std::size_t bytes) override { return to_.allocate(bytes); }
  bool is_simple_data_ptr(const c10::DataPtr& data) const override { return to_.is_simple_data_ptr(data); }
  c10::DeleterFnPtr raw_deleter() const override { return to_.raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { to_.copy_data(to, from, bytes); }
  void* raw_alloc(std::size_t bytes) override { return to_.raw_alloc(bytes); }
  void* raw_alloc_with_stream(std::size_t bytes, cudaStream_t stream) override {
    return to_.raw_alloc_with_stream(bytes, stream);
  }
  void raw_delete(void* block) override { to_.raw_delete(block); }
  using Base::recordStream;
  void recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) override { to_.recordStream(data, stream); }
  void* getBaseAllocation(void* block, std::size_t* bytes) override { return to_.getBaseAllocation(block, bytes); }
  c10::cuda::CUDACachingAllocator::ShareableHandle shareIpcHandle(void* block) override {
    return to_.shareIpcHandle(block);
  }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override { return to_.getIpcDevPtr(std::move(handle)); }

  void init(int devices) override { to_.init(devices); }
  bool initialized() override { return to_.initialized(); }
  void enable(bool value) override { to_.enable(value); }
  bool isEnabled() const override { return to_.isEnabled(); }
  std::string name() override { return to_.name(); }
  double getMemoryFraction(Device device) override { return to_.getMemoryFraction(device); }
  void setMemoryFraction(double fraction, Device device) override { to_.setMemoryFraction(fraction, device); }
  std::pair<std::size_t, std::size_t> getMemoryInfo(Device device) override { return to_.getMemoryInfo(device); }
  void emptyCache(Pool pool) override { to_.emptyCache(pool); }
  void cacheInfo(Device device, std::size_t* largest) override { to_.cacheInfo(device, largest); }
  std::vector<c10::cuda::CUDACachingAllocator::StreamSegmentSize> getExpandableSegmentSizes(Device device) override {
    return to_.getExpandableSegmentSizes(device);
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(Device device) override { return to_.getDeviceStats(device); }
  void resetAccumulatedStats(Device device) override { to_.resetAccumulatedStats(device); }
  void resetPeakStats(Device device) override { to_.resetPeakStats(device); }

  c10::cuda::CUDACachingAllocator::SnapshotInfo snapshot(Pool pool, bool include_traces) override {
    return to_.snapshot(pool, include_traces);
  }
  void beginAllocateToPool(Device device, Pool pool, std::function<bool(cudaStream_t)> filter) override {
    to_.beginAllocateToPool(device, pool, std::move(filter));
  }
  void endAllocateToPool(Device device, Pool pool) override { to_.endAllocateToPool(device, pool); }
  void releasePool(Device device, Pool pool) override { to_.releasePool(device, pool); }
  int getPoolUseCount(Device device, Pool pool) override { return to_.getPoolUseCount(device, pool); }
  void createOrIncrefPool(Device device, Pool pool, std::shared_ptr<Base> allocator) override {
    to_.createOrIncrefPool(device, pool, std::move(allocator));
  }
  void setUseOnOOM(Device device, Pool pool, bool use) override { to_.setUseOnOOM(device, pool, use); }
  void setNoSplit(Device device, Pool pool) override { to_.setNoSplit(device, pool); }
  bool checkPoolLiveAllocations(Device device, Pool pool, const std::unordered_set<void*>& expected) override {
    return to_.checkPoolLiveAllocations(device, pool, expected);
  }
  std::shared_ptr<c10::cuda::CUDACachingAllocator::AllocatorState> getCheckpointState(Device device,
                                                                                      Pool pool) override {
    return to_.getCheckpointState(device, pool);
  }
  c10::cuda::CUDACachingAllocator::CheckpointDelta setCheckpointPoolState(
      Device device, std::shared_ptr<c10::cuda::CUDACachingAllocator::AllocatorState> state) override {
    return to_.setCheckpointPoolState(device, std::move(state));
  }

  bool isHistoryEnabled() override { return to_.isHistoryEnabled(); }
  void recordHistory(bool enabled, c10::cuda::CUDACachingAllocator::CreateContextFn recorder, std::size_t entries,
                     c10::cuda::CUDACachingAllocator::RecordContext when, bool clear,
                     const std::vector<std::string>& skipped) override {
    to_.recordHistory(enabled, recorder, entries, when, clear, skipped);
  }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& text) override {
    to_.recordAnnotation(text);
  }
  void pushCompileContext(std::string& text) override { to_.pushCompileContext(text); }
  void popCompileContext() override { to_.popCompileContext(); }
  void setUserMetadata(const std::string& text) override { to_.setUserMetadata(text); }
  std::string getUserMetadata() override { return to_.getUserMetadata(); }
  void attachOutOfMemoryObserver(c10::cuda::CUDACachingAllocator::OutOfMemoryObserver observer) override {
    to_.attachOutOfMemoryObserver(std::move(observer));
  }
  void attachAllocatorTraceTracker(c10::cuda::CUDACachingAllocator::AllocatorTraceTracker tracker) override {
    to_.attachAllocatorTraceTracker(std::move(tracker));
  }
  void enablePeerAccess(Device from, Device to) override { to_.enablePeerAccess(from, to); }
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device, std::size_t bytes,
                          cudaStream_t stream, bool with_peers) override {
    return to_.memcpyAsync(to, to_device, from, from_device, bytes, stream, with_peers);
  }

#if PIANOLA_TORCH_AT_LEAST(2, 15)
  void markCaptureBegin(Device device) override { to_.markCaptureBegin(device); }
  void markCaptureEnd(Device device) override { to_.markCaptureEnd(device); }
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* block) override {
    return to_.getContextForPointer(block);
  }
  bool supportsUserMetadata() override { return to_.supportsUserMetadata(); }
  void annotateMemory(const void* block, const std::string& text) override { to_.annotateMemory(block, text); }
  void attachOomRejectionObserver(c10::cuda::CUDACachingAllocator::OomRejectionObserver observer) override {
    to_.attachOomRejectionObserver(std::move(observer));
  }
  c10::DataPtr allocateWithAddress(std::size_t bytes, void* address) override {
    return to_.allocateWithAddress(bytes, address);
  }
#endif

 protected:
  Base& to_;
};

#else

inline constexpr bool kCanForwardCudaAllocator = false;

#endif

}  // namespace pianola::torch_abi

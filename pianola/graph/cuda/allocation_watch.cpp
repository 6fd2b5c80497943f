#include <pianola/graph/cuda/allocation_watch.hpp>

#include <pianola/core/error.hpp>
#include <pianola/graph/cuda/mapped_segments.hpp>

#include <utility>

namespace pianola::graph {

AllocationWatch::AllocationWatch(c10::MempoolId_t pool) : pool_(pool), watch_(*this, trace::AllocatorWatch::Of::cuda) {
  if (trace::AllocatorWatch::sees_cuda()) return;
  throw UnsupportedError(
      {.what = "torch's allocator of CUDA memory does not tell what it hands out",
       .fix = "run with torch's native one: leave backend:cudaMallocAsync out of PYTORCH_CUDA_ALLOC_CONF"});
}

void AllocationWatch::on_memory(const trace::AllocatorEvent& event) {
  if (event.pool != pool_) return;
  if (SegmentsInRange::now() != nullptr) return;  // room for blocks, each of which is told
  const std::lock_guard lock(mutex_);
  (event.freed ? freed_ : allocated_).push_back({.begin = event.address, .end = event.address + event.bytes});
}

std::vector<ByteSpan> AllocationWatch::allocated_since(std::size_t number) const {
  watch_.check();
  const std::lock_guard lock(mutex_);
  return {allocated_.begin() + static_cast<std::ptrdiff_t>(number), allocated_.end()};
}

std::size_t AllocationWatch::allocated() const {
  const std::lock_guard lock(mutex_);
  return allocated_.size();
}

std::vector<ByteSpan> AllocationWatch::freed_since(std::size_t number) const {
  watch_.check();
  const std::lock_guard lock(mutex_);
  return {freed_.begin() + static_cast<std::ptrdiff_t>(number), freed_.end()};
}

std::size_t AllocationWatch::freed() const {
  const std::lock_guard lock(mutex_);
  return freed_.size();
}

std::vector<ByteSpan> AllocationWatch::take() {
  watch_.check();
  const std::lock_guard lock(mutex_);
  return std::move(allocated_);
}

}  // namespace pianola::graph

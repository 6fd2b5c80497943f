#include <pianola/trace/block_log.hpp>

#include <pianola/core/error.hpp>

#include <ATen/Context.h>

#include <fmt/format.h>

namespace pianola::trace {

namespace {

// The hook is put into an allocator that is there.
c10::Device with_its_allocator(c10::Device device) {
  if (device.is_cuda()) at::globalContext().lazyInitDevice(c10::kCUDA);
  return device;
}

}  // namespace

BlockLog::BlockLog(c10::Device device)
    : device_(with_its_allocator(device)), watch_(*this, AllocatorWatch::Of::with_frees) {
  if (device.is_cpu() ? AllocatorWatch::sees_the_cpu() : AllocatorWatch::sees_cuda()) return;
  throw UnsupportedError(
      {.what = fmt::format("memory of {} cannot be watched: another allocator is in the place of torch's",
                           device.is_cpu() ? "the CPU" : device.str()),
       .fix = device.is_cpu()
                  ? "take out the one that c10::SetCPUAllocator() put in with a priority"
                  : "leave backend:cudaMallocAsync out of PYTORCH_CUDA_ALLOC_CONF, and pluggable allocators"});
}

void BlockLog::on_op_begin(const OpSpan& /*op*/) {
  const std::lock_guard lock(mutex_);
  ++operations_;
}

void BlockLog::on_memory(const AllocatorEvent& event) noexcept {
  if (event.device.type() != device_.type() || (!device_.is_cpu() && event.device != device_)) return;
  const std::lock_guard lock(mutex_);
  const auto known = live_.find(event.address);
  if (event.freed && known == live_.end()) return;  // it is older
  const memory::Moment now = events_++;
  if (known != live_.end()) {
    StepBlock& block = blocks_[known->second];
    block.life.freed = now;
    block.freed_in = operations_ - 1;
    live_.erase(known);
  }
  if (event.freed) return;
  live_.emplace(event.address, blocks_.size());
  blocks_.push_back({.life = {.made = now, .bytes = event.bytes}, .made_in = operations_ - 1});
}

std::vector<StepBlock> BlockLog::blocks() const {
  const std::lock_guard lock(mutex_);
  return blocks_;
}

}  // namespace pianola::trace

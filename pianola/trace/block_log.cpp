#include <pianola/trace/block_log.hpp>

#include <pianola/core/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

namespace pianola::trace {

bool BlockLog::sees(c10::Device device) {
  return device.is_cpu() ? AllocatorWatch::sees_frees_of_the_cpu() : AllocatorWatch::sees_cuda();
}

BlockLog::BlockLog(AllocatorWatch::Of of) : watch_(*this, of) {}

void BlockLog::on_op_begin(const OpSpan& op) {
  if (stopped_) return;
  const std::lock_guard lock(mutex_);
  operations_.push_back(op.info);
}

void BlockLog::on_memory(const AllocatorEvent& event) {
  if (stopped_ || (!event.freed && OwnMemory::is_asked_for())) return;
  const std::lock_guard lock(mutex_);
  const auto known = live_.find(event.address);
  if (event.freed && known == live_.end()) return;  // it is older
  const memory::Moment now = events_++;
  if (known != live_.end()) {
    StepBlock& block = blocks_[known->second];
    block.life.freed = now;
    block.freed_in = last_operation();
    live_.erase(known);
  }
  if (event.freed) return;
  live_.emplace(event.address, blocks_.size());
  blocks_.push_back({.life = {.made = now, .bytes = event.bytes},
                     .made_in = last_operation(),
                     .device = event.device,
                     .stream = event.stream,
                     .address = event.address,
                     .pool = event.pool,
                     .by_own_thread = std::this_thread::get_id() == thread_});
}

std::vector<StepBlock> BlockLog::blocks() const {
  watch_.check();
  const std::lock_guard lock(mutex_);
  return blocks_;
}

std::vector<StepBlock> BlockLog::blocks(c10::Device device) const {
  if (sees(device)) return blocks_on(device, blocks());
  throw UnsupportedError(
      {.what = fmt::format("memory of {} cannot be watched: another allocator is in the place of torch's",
                           device.is_cpu() ? "the CPU" : device.str()),
       .fix = device.is_cpu()
                  ? "take out the one that c10::SetCPUAllocator() put in"
                  : "leave backend:cudaMallocAsync out of PYTORCH_CUDA_ALLOC_CONF, and pluggable allocators"});
}

memory::Moment BlockLog::now() const {
  const std::lock_guard lock(mutex_);
  return events_;
}

std::vector<const void*> BlockLog::operations() const {
  const std::lock_guard lock(mutex_);
  return operations_;
}

namespace {

std::optional<std::uintptr_t> main_stream_of(const std::vector<StepBlock>& blocks) {
  std::map<std::uintptr_t, std::uint64_t> bytes;
  for (const StepBlock& block : blocks) {
    if (block.by_own_thread) bytes[block.stream] += memory::in_whole_units(block.life.bytes);
  }
  const auto most = std::ranges::max_element(bytes, {}, [](const auto& one) { return one.second; });
  return most == bytes.end() ? std::nullopt : std::optional(most->first);
}

}  // namespace

memory::StepRun run_of(const std::vector<StepBlock>& blocks, std::vector<const void*> operations) {
  memory::StepRun run{
      .blocks = {}, .made_in = {}, .streams = {}, .operations = std::move(operations), .main = main_stream_of(blocks)};
  run.blocks.reserve(blocks.size());
  run.made_in.reserve(blocks.size());
  run.streams.reserve(blocks.size());
  for (const StepBlock& block : blocks) {
    run.blocks.push_back(block.life);
    run.made_in.push_back(block.made_in);
    run.streams.push_back(block.stream);
  }
  return run;
}

std::vector<StepBlock> blocks_on(c10::Device device, const std::vector<StepBlock>& blocks) {
  std::vector<StepBlock> chosen;
  std::ranges::copy_if(blocks, std::back_inserter(chosen), [&](const StepBlock& block) {
    return block.device.type() == device.type() && (device.is_cpu() || block.device == device);
  });
  return chosen;
}

}  // namespace pianola::trace

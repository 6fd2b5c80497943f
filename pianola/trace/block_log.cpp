#include <pianola/trace/block_log.hpp>

namespace pianola::trace {

BlockLog::BlockLog(c10::Device device) : device_(device), watch_(*this, AllocatorWatch::Of::with_frees) {}

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

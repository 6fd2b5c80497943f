#include <pianola/trace/allocation_log.hpp>

namespace pianola::trace {

void AllocationLog::on_memory(const AllocatorEvent& event) {
  if (event.freed) return;
  const std::lock_guard lock(mutex_);
  if (stopped_) return;
  if (!paused_) return fresh_.push_back(event.address);
  settle();
  known_.erase(event.address);
}

void AllocationLog::stop() noexcept {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  fresh_.clear();
}

void AllocationLog::pause(bool paused) {
  const std::lock_guard lock(mutex_);
  paused_ = paused;
}

void AllocationLog::settle() {
  known_.insert(fresh_.begin(), fresh_.end());
  fresh_.clear();
}

bool AllocationLog::contains(const void* data) {
  watch_.check();
  const std::lock_guard lock(mutex_);
  settle();
  return known_.count(reinterpret_cast<std::uintptr_t>(data)) != 0;
}

}  // namespace pianola::trace

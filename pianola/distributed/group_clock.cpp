#include <pianola/distributed/group_clock.hpp>

namespace pianola::distributed {

// Never destroyed: graphs may end after static objects do.
GroupClock& GroupClock::of_this_process() {
  static auto* const clock = new GroupClock();
  return *clock;
}

GroupClock::Counter GroupClock::counter(std::string_view group) {
  const std::lock_guard lock(mutex_);
  auto known = counters_.find(group);
  if (known == counters_.end()) known = counters_.emplace(group, std::make_shared<std::atomic<std::int64_t>>(0)).first;
  return known->second;
}

void GroupClock::forget(std::string_view group) {
  const std::lock_guard lock(mutex_);
  if (const auto known = counters_.find(group); known != counters_.end()) counters_.erase(known);
}

}  // namespace pianola::distributed

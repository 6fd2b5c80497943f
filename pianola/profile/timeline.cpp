#include <pianola/profile/timeline.hpp>

#include <algorithm>

namespace pianola {
namespace {

/// By begin; of two that begin together the longer first. Readers mostly deliver in order, and then nothing moves.
template <class Event>
void sort_by_time(std::vector<Event>& events) {
  const auto earlier = [](const Event& a, const Event& b) {
    return a.time.begin != b.time.begin ? a.time.begin < b.time.begin : a.time.end > b.time.end;
  };
  if (!std::is_sorted(events.begin(), events.end(), earlier)) std::stable_sort(events.begin(), events.end(), earlier);
}

template <class Event>
void widen(TimeSpan& extent, bool& any, const std::vector<Event>& events) noexcept {
  for (const Event& event : events) {
    extent.begin = any ? std::min(extent.begin, event.time.begin) : event.time.begin;
    extent.end = any ? std::max(extent.end, event.time.end) : event.time.end;
    any = true;
  }
}

}  // namespace

NameId Timeline::intern(std::string_view name) {
  const auto known = ids_.find(name);
  if (known != ids_.end()) return known->second;
  const auto id = static_cast<NameId>(names_.size());
  names_.emplace_back(name);
  ids_.emplace(names_.back(), id);
  return id;
}

void Timeline::sort() {
  sort_by_time(work);
  sort_by_time(calls);
  sort_by_time(ranges);
}

TimeSpan Timeline::extent() const noexcept {
  TimeSpan extent;
  bool any = false;
  widen(extent, any, work);
  widen(extent, any, calls);
  widen(extent, any, ranges);
  return extent;
}

}  // namespace pianola

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

void sort_by_time(std::vector<MemoryEvent>& events) {
  const auto time = [](const MemoryEvent& event) { return event.time; };
  if (!std::ranges::is_sorted(events, {}, time)) std::ranges::stable_sort(events, {}, time);
}

TimeSpan span_of(const MemoryEvent& event) noexcept { return {event.time, event.time}; }
template <class Event>
TimeSpan span_of(const Event& event) noexcept {
  return event.time;
}

template <class Event>
void widen(TimeSpan& extent, bool& any, const std::vector<Event>& events) noexcept {
  for (const Event& event : events) {
    const TimeSpan time = span_of(event);
    extent.begin = any ? std::min(extent.begin, time.begin) : time.begin;
    extent.end = any ? std::max(extent.end, time.end) : time.end;
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
  sort_by_time(memory);
}

TimeSpan Timeline::extent() const noexcept {
  TimeSpan extent;
  bool any = false;
  widen(extent, any, work);
  widen(extent, any, calls);
  widen(extent, any, ranges);
  widen(extent, any, memory);
  return extent;
}

}  // namespace pianola

#pragma once
#include <pianola/profile/timeline.hpp>

#include <gtest/gtest.h>

#include <tuple>
#include <vector>

namespace pianola::profiling {

// All that an event says, with its name in letters.
inline auto fields(const Timeline& timeline, const DeviceWork& work) {
  return std::tuple(work.time.begin, work.time.end, timeline.name(work.name), work.kind, work.process, work.device,
                    work.stream, work.correlation, work.graph, work.bytes);
}
inline auto fields(const Timeline& timeline, const HostCall& call) {
  return std::tuple(call.time.begin, call.time.end, timeline.name(call.name), call.kind, call.process, call.thread,
                    call.correlation);
}
inline auto fields(const Timeline& timeline, const HostRange& range) {
  return std::tuple(range.time.begin, range.time.end, timeline.name(range.name), range.kind, range.process,
                    range.thread);
}
inline auto fields(const Timeline& /*timeline*/, const MemoryEvent& event) {
  return std::tuple(event.time, event.address, event.bytes, event.allocated, event.reserved, event.process,
                    event.device, event.thread);
}

template <class Event>
auto all_fields(const Timeline& timeline, const std::vector<Event>& events) {
  std::vector<decltype(fields(timeline, events.front()))> all;
  for (const Event& event : events) all.push_back(fields(timeline, event));
  return all;
}

inline void expect_same_events(const Timeline& one, const Timeline& other) {
  EXPECT_EQ(all_fields(one, one.work), all_fields(other, other.work));
  EXPECT_EQ(all_fields(one, one.calls), all_fields(other, other.calls));
  EXPECT_EQ(all_fields(one, one.ranges), all_fields(other, other.ranges));
  EXPECT_EQ(all_fields(one, one.memory), all_fields(other, other.memory));
}

}  // namespace pianola::profiling

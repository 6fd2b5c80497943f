#include <pianola/profile/read/host_ranges.hpp>

#include <pianola/core/plural.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string_view>
#include <utility>

namespace pianola::profiling {
namespace {

using Thread = std::pair<std::int32_t, std::int64_t>;  // process and thread

Thread thread_of(const HostRange& range) { return {range.process, range.thread}; }

/// Operators are named "namespace::name"; a node of autograd at work ("AddmmBackward0") is none, but has some inside.
bool is_operator(std::string_view name) {
  return name.find("::") != std::string_view::npos && !name.starts_with("autograd::") &&
         !name.starts_with("torch::autograd::");
}

std::vector<bool> operators(const Timeline& timeline) {
  std::vector<bool> found(timeline.names());
  for (std::size_t id = 0; id < found.size(); ++id) found[id] = is_operator(timeline.name(static_cast<NameId>(id)));
  return found;
}

}  // namespace

std::size_t nest(std::vector<HostRange>& ranges) {
  std::map<Thread, std::vector<Nanoseconds>> open;  // Ends of the ranges around, outermost first.
  std::size_t cut = 0;
  for (HostRange& range : ranges) {
    std::vector<Nanoseconds>& ends = open[thread_of(range)];
    while (!ends.empty() && ends.back() <= range.time.begin) ends.pop_back();
    if (!ends.empty() && range.time.end > ends.back()) {
      range.time.end = ends.back();
      ++cut;
    }
    ends.push_back(range.time.end);
  }
  return cut;
}

void nest_ranges(Timeline& timeline) {
  const std::size_t cut = nest(timeline.ranges);
  if (cut == 0) return;
  timeline.notes.push_back(fmt::format("{} range{} ended after the one in which it began, and {} cut there", cut,
                                       plural(cut), cut == 1 ? "was" : "were"));
}

std::vector<DeviceWork> outermost_operations(const Timeline& timeline) {
  const std::vector<bool> is_operator = operators(timeline);
  std::map<Thread, Nanoseconds> last_end;
  std::vector<DeviceWork> work;
  for (const HostRange& range : timeline.ranges) {
    if (range.kind != HostRange::Kind::operation || !is_operator[range.name]) continue;
    const auto [last, first_of_thread] = last_end.emplace(thread_of(range), range.time.begin);
    if (!first_of_thread && range.time.begin < last->second) continue;
    last->second = range.time.end;
    work.push_back({.time = range.time,
                    .name = range.name,
                    .kind = DeviceWork::Kind::operation,
                    .process = range.process,
                    .device = -1,
                    .stream = range.thread});
  }
  return work;
}

}  // namespace pianola::profiling

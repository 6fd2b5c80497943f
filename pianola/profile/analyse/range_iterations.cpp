#include <pianola/profile/analyse/range_iterations.hpp>

#include <pianola/core/error.hpp>
#include <pianola/core/nearest_name.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace pianola::profiling {
namespace {

constexpr std::size_t kNamesListed = 8;

bool is_annotation(const HostRange& range, std::int32_t process) {
  return range.kind == HostRange::Kind::annotation && range.process == process;
}

// Of the thread that entered it most often, of threads that did equally often the first; without nested ones.
std::vector<TimeSpan> entries_of(const DeviceWorkList& list, std::string_view name) {
  const Timeline& timeline = *list.timeline;
  std::map<NameId, bool> is_named;
  std::map<std::int64_t, std::vector<TimeSpan>> entries;
  for (const HostRange& range : timeline.ranges) {
    if (!is_annotation(range, list.process)) continue;
    const auto [known, is_new] = is_named.try_emplace(range.name, false);
    const std::string& text = timeline.name(range.name);
    if (is_new) known->second = text == name || without_counter(text) == name;
    if (!known->second) continue;
    std::vector<TimeSpan>& of_thread = entries[range.thread];
    if (of_thread.empty() || of_thread.back().end <= range.time.begin) of_thread.push_back(range.time);
  }
  std::vector<TimeSpan> most;
  for (auto& [thread, spans] : entries) {
    const bool is_first = spans.size() == most.size() && spans.front().begin < most.front().begin;
    if (spans.size() > most.size() || is_first) most = std::move(spans);
  }
  return most;
}

struct IssuedWork {
  Nanoseconds host;
  TimeSpan device;
};

// In the order in which it was issued; where the call is unknown as if it had been when it began.
std::vector<IssuedWork> by_issue(const DeviceWorkList& list, const Issued& issued) {
  std::vector<IssuedWork> works;
  works.reserve(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    const HostCall* call = issued.call(i);
    works.push_back({call == nullptr ? list[i].time.begin : call->time.begin, list[i].time});
  }
  if (!std::ranges::is_sorted(works, {}, &IssuedWork::host)) std::ranges::stable_sort(works, {}, &IssuedWork::host);
  return works;
}

std::vector<Boundary> boundaries_at(const std::vector<TimeSpan>& entries, const std::vector<IssuedWork>& works) {
  std::vector<Boundary> boundaries;
  Nanoseconds end = 0;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const Nanoseconds until = i + 1 < entries.size() ? entries[i + 1].begin : entries[i].end;
    auto work = std::ranges::lower_bound(works, entries[i].begin, {}, &IssuedWork::host);
    if (work == works.end() || work->host >= until) continue;
    const Nanoseconds begin = work->device.begin;
    if (!boundaries.empty() && begin <= boundaries.back().device) continue;
    boundaries.push_back({begin, entries[i].begin});
    for (; work != works.end() && work->host < until; ++work) end = std::max(end, work->device.end);
  }
  if (!boundaries.empty()) boundaries.push_back({end, std::max(end, entries.back().end)});
  return boundaries;
}

}  // namespace

std::string_view without_counter(std::string_view name) {
  const std::size_t mark = name.rfind('#');
  if (mark == std::string_view::npos || mark == 0 || mark + 1 == name.size()) return name;
  const auto is_digit = [](char c) { return '0' <= c && c <= '9'; };
  return std::ranges::all_of(name.substr(mark + 1), is_digit) ? name.substr(0, mark) : name;
}

std::optional<FoundIterations> iterations_by_range(const DeviceWorkList& list, const Issued& issued,
                                                   std::string_view range, std::size_t fewest) {
  const std::vector<TimeSpan> entries = entries_of(list, range);
  if (entries.size() < fewest) return std::nullopt;
  FoundIterations found{.by = IterationsBy::range, .range = std::string(range), .problem = "", .boundaries = {}};
  found.boundaries = boundaries_at(entries, by_issue(list, issued));
  if (found.boundaries.empty()) return std::nullopt;
  return found;
}

void refuse_range(const DeviceWorkList& list, std::string_view range) {
  const Timeline& timeline = *list.timeline;
  std::map<std::string_view, std::size_t> entered;
  for (const HostRange& other : timeline.ranges) {
    if (is_annotation(other, list.process)) ++entered[without_counter(timeline.name(other.name))];
  }
  const std::string where = timeline.source.empty() ? "" : fmt::format("timeline of {}", timeline.source);
  if (entered.contains(without_counter(range))) {
    throw UsageError({.what = fmt::format("nothing was issued to device {} in '{}'", list.device, range),
                      .where = where,
                      .fix = "name the annotation around the work of an iteration, or none to find iterations by "
                             "what repeats"});
  }
  const auto what = fmt::format("process {} has no annotation '{}'", list.process, range);
  if (entered.empty()) {
    throw UsageError({.what = what + ", nor any other",
                      .where = where,
                      .fix = "put torch.profiler.record_function or an NVTX range around an iteration, or name none to "
                             "find iterations by what repeats"});
  }
  std::vector<std::string_view> names;
  for (const auto& [name, entries] : entered) names.push_back(name);
  const std::string similar = did_you_mean(range, names);
  std::ranges::stable_sort(names, std::greater<>(), [&](std::string_view name) { return entered[name]; });
  const bool more = names.size() > kNamesListed;
  if (more) names.resize(kNamesListed);
  throw UsageError({.what = what + similar,
                    .where = where,
                    .fix = fmt::format("take one of '{}'{}", fmt::join(names, "', '"), more ? ", ..." : "")});
}

}  // namespace pianola::profiling

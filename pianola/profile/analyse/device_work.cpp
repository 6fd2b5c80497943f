#include <pianola/profile/analyse/device_work.hpp>

#include <pianola/core/error.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

namespace pianola::profiling {
namespace {

constexpr std::int32_t kAnyProcess = -1;
constexpr std::int32_t kAnyDevice = -2;

using Worker = std::pair<std::int32_t, std::int32_t>;  // A process and its device.

std::map<Worker, std::size_t> workers_of(const Timeline& timeline) {
  std::map<Worker, std::size_t> workers;
  std::size_t* pieces = nullptr;
  Worker last;
  for (const DeviceWork& work : timeline.work) {
    const Worker worker{work.process, work.device};
    if (pieces == nullptr || worker != last) pieces = &workers[last = worker];
    ++*pieces;
  }
  return workers;
}

std::string source_of(const Timeline& timeline) {
  return timeline.source.empty() ? "" : fmt::format("timeline of {}", timeline.source);
}

[[noreturn]] void refuse_empty(const Timeline& timeline) {
  throw UsageError(
      {.what =
           fmt::format("the timeline has no device work: {} calls and {} ranges of the host, but no kernel, copy or "
                       "operation",
                       timeline.calls.size(), timeline.ranges.size()),
       .where = source_of(timeline),
       .fix = "profile a part of the program that computes; with torch.profiler ask for ProfilerActivity.CUDA too"});
}

std::string in_words(std::int32_t device) { return device < 0 ? "the CPU (-1)" : fmt::format("{}", device); }

[[noreturn]] void refuse_choice(const Timeline& timeline, const std::map<Worker, std::size_t>& workers,
                                std::int32_t process, std::int32_t device) {
  std::set<std::int32_t> processes;
  std::set<std::string> devices;
  for (const auto& [worker, pieces] : workers) {
    processes.insert(worker.first);
    if (process == kAnyProcess || worker.first == process) devices.insert(in_words(worker.second));
  }
  if (process != kAnyProcess && !processes.contains(process)) {
    throw UsageError(
        {.what = fmt::format("no process {} gave a device work", process),
         .where = source_of(timeline),
         .fix = fmt::format("take one of {}, or -1 for the one with most work", fmt::join(processes, ", "))});
  }
  const std::string whose = process == kAnyProcess ? "" : fmt::format(" of process {}", process);
  throw UsageError({.what = fmt::format("device {} did no work{}", in_words(device), whose),
                    .where = source_of(timeline),
                    .fix = fmt::format("take one of {}, or -2 for the one with most work", fmt::join(devices, ", "))});
}

Worker busiest(const Timeline& timeline, std::int32_t process, std::int32_t device) {
  const std::map<Worker, std::size_t> workers = workers_of(timeline);
  if (workers.empty()) refuse_empty(timeline);
  const std::pair<const Worker, std::size_t>* best = nullptr;
  for (const auto& candidate : workers) {
    const auto [of_process, of_device] = candidate.first;
    if (process != kAnyProcess && of_process != process) continue;
    if (device != kAnyDevice && of_device != device) continue;
    const auto rank = [](const auto& worker) { return std::pair(worker.first.second >= 0, worker.second); };
    if (best == nullptr || rank(candidate) > rank(*best)) best = &candidate;
  }
  if (best == nullptr) refuse_choice(timeline, workers, process, device);
  return best->first;
}

bool names_any(std::string_view name, std::span<const std::string_view> words) {
  return std::ranges::any_of(words, [&](std::string_view word) { return name.find(word) != std::string_view::npos; });
}

}  // namespace

DeviceWorkList choose_device(const Timeline& timeline, std::int32_t process, std::int32_t device) {
  const Worker worker = busiest(timeline, process, device);
  DeviceWorkList list{.timeline = &timeline, .process = worker.first, .device = worker.second, .order = {}};
  for (std::size_t i = 0; i < timeline.work.size(); ++i) {
    const DeviceWork& work = timeline.work[i];
    if (work.process == worker.first && work.device == worker.second) list.order.push_back(i);
  }
  return list;
}

CopyDirection copy_direction(const Timeline& timeline, const DeviceWork& work) {
  // torch.profiler's words, Nsight Systems', and those of the calls.
  constexpr std::array<std::string_view, 3> kToDevice = {"HtoD", "Host-to-Device", "HostToDevice"};
  constexpr std::array<std::string_view, 3> kToHost = {"DtoH", "Device-to-Host", "DeviceToHost"};
  if (work.kind != DeviceWork::Kind::copy) return CopyDirection::other;
  const std::string& name = timeline.name(work.name);
  if (names_any(name, kToDevice)) return CopyDirection::to_device;
  return names_any(name, kToHost) ? CopyDirection::to_host : CopyDirection::other;
}

std::size_t position_at(const DeviceWorkList& list, Nanoseconds time) {
  const auto begin_of = [&](std::size_t index) { return list.timeline->work[index].time.begin; };
  return static_cast<std::size_t>(std::ranges::lower_bound(list.order, time, {}, begin_of) - list.order.begin());
}

std::vector<TimeSpan> united(std::vector<TimeSpan> spans) {
  std::ranges::sort(spans, {}, &TimeSpan::begin);
  std::vector<TimeSpan> apart;
  for (const TimeSpan& span : spans) {
    if (span.end <= span.begin) continue;
    if (!apart.empty() && span.begin <= apart.back().end) {
      apart.back().end = std::max(apart.back().end, span.end);
    } else {
      apart.push_back(span);
    }
  }
  return apart;
}

Nanoseconds covered(std::span<const TimeSpan> apart, TimeSpan within) {
  Nanoseconds sum = 0;
  for (auto span = std::ranges::upper_bound(apart, within.begin, {}, &TimeSpan::end);
       span != apart.end() && span->begin < within.end; ++span) {
    sum += std::min(span->end, within.end) - std::max(span->begin, within.begin);
  }
  return sum;
}

}  // namespace pianola::profiling

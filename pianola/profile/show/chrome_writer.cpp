#include <pianola/profile/show/chrome_writer.hpp>

#include <pianola/profile/call_kind.hpp>
#include <pianola/profile/read/chrome_event.hpp>
#include <pianola/profile/read/microseconds.hpp>
#include <pianola/profile/show/chrome_tracks.hpp>
#include <pianola/profile/show/trace_output.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

namespace pianola {
namespace profiling {
namespace {

std::string_view category(const DeviceWork& work) {
  switch (work.kind) {
    case DeviceWork::Kind::kernel:
      return "kernel";
    case DeviceWork::Kind::copy:
      return "gpu_memcpy";
    case DeviceWork::Kind::memset:
      return "gpu_memset";
    case DeviceWork::Kind::operation:
      return "cpu_work";
  }
  return {};
}

/// Torch's category where it says the kind together with the name, else Pianola's own.
std::string_view category(const HostRange& range, std::string_view name) {
  switch (range.kind) {
    case HostRange::Kind::annotation:
      return "user_annotation";
    case HostRange::Kind::operation:
      return "cpu_op";
    case HostRange::Kind::backward:
      return name.starts_with(kBackwardPrefix) ? "cpu_op" : "backward";
    case HostRange::Kind::module:
      return name.starts_with(kModulePrefix) ? "python_function" : "module";
  }
  return {};
}

std::string args_of(const DeviceWork& work) {
  std::string args = fmt::format(R"("device": {}, "stream": {}, "process": {})", work.device, work.stream,
                                 ChromeTracks::host(work.process));
  if (work.correlation != 0) args += fmt::format(R"(, "correlation": {})", work.correlation);
  if (work.graph != 0) args += fmt::format(R"(, "graph id": {})", work.graph);
  if (work.bytes != 0) args += fmt::format(R"(, "bytes": {})", work.bytes);
  return args;
}

// As torch writes it.
std::string args_of(const MemoryEvent& event) {
  const bool cpu = event.device < 0;
  return fmt::format(
      R"("Total Reserved": {}, "Total Allocated": {}, "Bytes": {}, "Device Id": {}, "Device Type": {}, "Addr": {})",
      event.reserved, event.allocated, event.bytes, cpu ? -1 : event.device, cpu ? 0 : 1, event.address);
}

class Writer {
 public:
  Writer(const Timeline& timeline, const Analysis& analysis, const std::filesystem::path& file)
      : timeline_(timeline),
        analysis_(analysis),
        output_(file, timeline, timeline.extent().begin),
        names_(timeline.names()) {}

  void write() {
    // One process after the other, so that a reader meets them in the order of their numbers.
    for (std::int32_t process = 0; process <= last_process(); ++process) {
      const Callers callers = callers_of(process);
      write_work(process, callers);
      write_graph_launches(process);
      write_calls(process);
      write_ranges(process);
      write_memory(process);
    }
    write_iterations();
    write_gaps();
    tracks_.name(output_);
    output_.finish();
  }

 private:
  using Callers = std::unordered_map<std::uint64_t, const HostCall*>;  // By correlation.

  std::int32_t last_process() const;
  Callers callers_of(std::int32_t process) const;
  const std::string& quoted(NameId id);
  void write_work(std::int32_t process, const Callers& callers);
  void write_graph_launches(std::int32_t process);
  void write_calls(std::int32_t process);
  void write_ranges(std::int32_t process);
  void write_memory(std::int32_t process);
  void write_iterations();
  void write_gaps();
  std::string args_of_gap(const Gap& gap);

  const Timeline& timeline_;
  const Analysis& analysis_;
  TraceOutput output_;
  ChromeTracks tracks_;
  std::vector<std::string> names_;  // As JSON, once they were asked for.
};

std::int32_t Writer::last_process() const {
  std::int32_t last = 0;
  for (const DeviceWork& work : timeline_.work) last = std::max(last, work.process);
  for (const HostCall& call : timeline_.calls) last = std::max(last, call.process);
  for (const HostRange& range : timeline_.ranges) last = std::max(last, range.process);
  for (const MemoryEvent& event : timeline_.memory) last = std::max(last, event.process);
  return last;
}

Writer::Callers Writer::callers_of(std::int32_t process) const {
  Callers callers;
  for (const HostCall& call : timeline_.calls) {
    if (call.process == process && call.correlation != 0) callers.emplace(call.correlation, &call);
  }
  return callers;
}

const std::string& Writer::quoted(NameId id) {
  if (names_[id].empty()) names_[id] = json_string(timeline_.name(id));
  return names_[id];
}

void Writer::write_work(std::int32_t process, const Callers& callers) {
  for (const DeviceWork& work : timeline_.work) {
    if (work.process != process) continue;
    const std::string group = fmt::format("{} {}", work.device < 0 ? "thread" : "stream", work.stream);
    const Track track = tracks_.place(process, work.device, group, work.time);
    output_.event(track, category(work), quoted(work.name), work.time, args_of(work));
    const auto caller = callers.find(work.correlation);
    if (caller == callers.end()) continue;
    const HostCall& call = *caller->second;
    output_.arrow({ChromeTracks::host(process), call.thread}, call.time.begin, track, work.time.begin);
  }
}

/// From the first to the last node of each launch.
void Writer::write_graph_launches(std::int32_t process) {
  struct GraphLaunch {
    TimeSpan time;
    std::uint64_t graph = 0;
    std::size_t nodes = 0;
  };
  std::map<std::tuple<std::int32_t, std::uint64_t>, GraphLaunch> launches;  // By device and correlation.
  for (const DeviceWork& work : timeline_.work) {
    if (work.process != process || work.graph == 0 || work.correlation == 0) continue;
    GraphLaunch& launch =
        launches.try_emplace({work.device, work.correlation}, GraphLaunch{work.time, work.graph}).first->second;
    launch.time = {std::min(launch.time.begin, work.time.begin), std::max(launch.time.end, work.time.end)};
    ++launch.nodes;
  }
  // Correlations grow with time on one thread only.
  std::vector<std::pair<std::tuple<std::int32_t, std::uint64_t>, GraphLaunch>> in_order(launches.begin(),
                                                                                        launches.end());
  std::stable_sort(in_order.begin(), in_order.end(),
                   [](const auto& a, const auto& b) { return a.second.time.begin < b.second.time.begin; });
  for (const auto& [key, launch] : in_order) {
    const auto& [device, correlation] = key;
    output_.event(
        tracks_.place(process, device, "graph launches", launch.time), "graph_launch",
        json_string(fmt::format("graph {}", launch.graph)), launch.time,
        fmt::format(R"("graph id": {}, "correlation": {}, "nodes": {})", launch.graph, correlation, launch.nodes));
  }
}

void Writer::write_calls(std::int32_t process) {
  for (const HostCall& call : timeline_.calls) {
    if (call.process != process) continue;
    tracks_.host_thread(process, call.thread);
    const bool driver = is_driver_call(timeline_.name(call.name));
    output_.event({ChromeTracks::host(process), call.thread}, driver ? "cuda_driver" : "cuda_runtime",
                  quoted(call.name), call.time,
                  call.correlation == 0 ? "" : fmt::format(R"("correlation": {})", call.correlation));
  }
}

void Writer::write_ranges(std::int32_t process) {
  for (const HostRange& range : timeline_.ranges) {
    if (range.process != process) continue;
    tracks_.host_thread(process, range.thread);
    output_.event({ChromeTracks::host(process), range.thread}, category(range, timeline_.name(range.name)),
                  quoted(range.name), range.time, "");
  }
}

void Writer::write_memory(std::int32_t process) {
  const std::string name = json_string(kMemoryEvent);
  for (const MemoryEvent& event : timeline_.memory) {
    if (event.process != process) continue;
    tracks_.host_thread(process, event.thread);
    const Track track{ChromeTracks::host(process), event.thread};
    output_.instant(track, "cpu_instant_event", name, event.time, args_of(event));
    const std::string device = event.device < 0 ? "the CPU" : fmt::format("device {}", event.device);
    output_.counter(track.process, json_string(fmt::format("allocated on {}", device)), event.time, "bytes",
                    event.allocated);
  }
}

void Writer::write_iterations() {
  for (std::size_t i = 0; i < analysis_.iterations.size(); ++i) {
    const Iteration& iteration = analysis_.iterations[i];
    output_.event(tracks_.place(analysis_.process, analysis_.device, "iterations", iteration.time), "iteration",
                  json_string(fmt::format("iteration {}", i)), iteration.time,
                  fmt::format(R"("busy_us": {}, "kernels": {}, "launches": {}, "graph launches": {}, )"
                              R"("synchronizations": {})",
                              to_microseconds(iteration.busy), iteration.kernels, iteration.launches,
                              iteration.graph_launches, iteration.synchronizations));
  }
}

void Writer::write_gaps() {
  for (const Gap& gap : analysis_.gaps) {
    output_.event(tracks_.place(analysis_.process, analysis_.device, "gaps", gap.time), "gap",
                  json_string(in_words(gap.cause)), gap.time, args_of_gap(gap));
  }
}

std::string Writer::args_of_gap(const Gap& gap) {
  std::string args;
  if (gap.next < timeline_.work.size()) args = fmt::format(R"("next": {})", quoted(timeline_.work[gap.next].name));
  if (gap.culprit && *gap.culprit < timeline_.calls.size()) {
    args += fmt::format(R"({}"waited in": {})", args.empty() ? "" : ", ", quoted(timeline_.calls[*gap.culprit].name));
  }
  return args;
}

}  // namespace
}  // namespace profiling

void write_chrome_trace(const Timeline& timeline, const Analysis& analysis, const std::filesystem::path& file) {
  profiling::Writer(timeline, analysis, file).write();
}

}  // namespace pianola

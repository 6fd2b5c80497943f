#include "benchmark.hpp"

#include <pianola/core/error.hpp>
#include <pianola/profile/profile.hpp>
#include <pianola/profile/testing/synthetic_trace.hpp>

#include <fmt/format.h>

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

namespace pianola::bench::cpu {
namespace {

// A trace in a file that is gone in the end.
class TraceFile {
 public:
  explicit TraceFile(std::size_t events)
      : path_(std::filesystem::temp_directory_path() / fmt::format("pianola_bench_{}.json", getpid())),
        expected_(profiling::synthetic_counts(events)) {
    profiling::write_synthetic_trace(path_, events);
  }
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;
  ~TraceFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }

  /// @throws Error  Not everything that was written has been found.
  void load() const {
    const Profile profile = load_profile(path_);
    const Timeline& found = profile.timeline;
    if (found.work.size() != expected_.kernels || found.calls.size() != expected_.calls ||
        profile.analysis.iterations.empty()) {
      throw Error({.what = fmt::format("the trace of {} kernels and {} calls was read as {} and {}, in {} iterations",
                                       expected_.kernels, expected_.calls, found.work.size(), found.calls.size(),
                                       profile.analysis.iterations.size())});
    }
  }

 private:
  std::filesystem::path path_;
  profiling::SyntheticCounts expected_;
};

// "VmHWM" or "VmRSS" of /proc/self/status.
double resident_mebibytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field + ":")) return std::stod(line.substr(field.size() + 1)) / 1024;
  }
  throw Error({.what = fmt::format("/proc/self/status has no {}", field)});
}

void forget_peak() {
  malloc_trim(0);  // what earlier benchmarks have freed is not there for this one to use
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;
  if (!file) throw Error({.what = "the peak of resident memory cannot be reset through /proc/self/clear_refs"});
}

Case time_case(const TraceFile& trace, const std::string& name, const Settings& settings) {
  const Contender contenders[] = {{"pianola::load_profile", [&] { trace.load(); }}};
  const Timer seconds = [timer = host_timer()](const std::function<void()>& iteration, int count) {
    return timer(iteration, count) / 1e6;
  };
  Case result{.name = name,
              .measure = "time to read, analyse and judge it",
              .unit = "s",
              .baseline = "",
              .iterations = 1,
              .series = interleave(seconds, contenders, {.blocks = std::min(settings.blocks, 5), .iterations = 1})};
  result.requirements = {at_most(result, "at most 5 s", 5)};
  return result;
}

Case memory_case(const TraceFile& trace, const std::string& name) {
  forget_peak();
  const double before = resident_mebibytes("VmRSS");
  trace.load();
  const double peak = resident_mebibytes("VmHWM");
  Case result{.name = name,
              .measure = "peak of resident memory",
              .unit = "MiB",
              .baseline = "",
              .iterations = 1,
              .series = {{"the process, libtorch and all", {peak}}, {"pianola::load_profile", {peak - before}}}};
  result.requirements = {at_most(result, "at most 1024 MiB", 1024)};
  return result;
}

}  // namespace

std::vector<Case> profile_million_events(const Settings& settings) {
  const std::size_t events = settings.quick ? 10'000 : 1'000'000;
  const std::string name = fmt::format("a trace of {} events", events);
  const TraceFile trace(events);
  return {memory_case(trace, name), time_case(trace, name, settings)};
}

}  // namespace pianola::bench::cpu

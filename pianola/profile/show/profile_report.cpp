#include <pianola/profile/show/profile_report.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace pianola {
namespace {

double us(Nanoseconds time) { return static_cast<double>(time) / 1000; }
double percent(double share) { return 100 * share; }

const char* in_words(HostRange::Kind kind) {
  switch (kind) {
    case HostRange::Kind::annotation:
      return "annotation";
    case HostRange::Kind::operation:
      return "operation";
    case HostRange::Kind::backward:
      return "backward";
    case HostRange::Kind::module:
      break;
  }
  return "module";
}

std::string found_by(const Analysis& analysis) {
  switch (analysis.by) {
    case IterationsBy::range:
      return fmt::format("{}, each begun by '{}'", analysis.iterations.size(), analysis.range);
    case IterationsBy::repetition:
      return fmt::format("{}, found by their repeating work", analysis.iterations.size());
    case IterationsBy::nothing:
      break;
  }
  return "none found: all of the profile is taken for one";
}

ReportValue or_unknown(std::uint64_t bytes) { return bytes == 0 ? ReportValue() : ReportValue(bytes); }

void add_memory(const Analysis& analysis, Report& report) {
  if (!analysis.memory) {
    report.fact("own_bytes", "memory of its own", {}, "bytes");
    return;
  }
  const MemoryUse& memory = *analysis.memory;
  report.fact("own_bytes", "memory of its own", memory.own, "bytes");
  if (analysis.device < 0) return;
  report.fact("allocated_bytes", "allocated at most", or_unknown(memory.allocated), "bytes")
      .fact("reserved_bytes", "reserved at most", or_unknown(memory.reserved), "bytes")
      .fact("free_bytes", memory.left_at_most ? "left to the driver, at most" : "left to the driver",
            memory.left ? ReportValue(memory.left->of_driver) : ReportValue(), "bytes")
      .fact("cached_bytes", "unused in torch's allocator",
            memory.left ? ReportValue(memory.left->cached) : ReportValue(), "bytes");
}

// What was left out or is unknown.
std::vector<std::string> notes(const Timeline& timeline, const Decision& decision) {
  std::vector<std::string> notes = timeline.notes;
  if (!decision.memory_unknown.empty()) notes.push_back(decision.memory_unknown);
  return notes;
}

void add_facts(const Timeline& timeline, const Analysis& analysis, const Decision& decision, Report& report) {
  report.fact("headline", "verdict", decision.headline).fact("verdict", "in short", in_words(decision.verdict));
  if (!timeline.device_name.empty()) report.fact("device_name", "device", timeline.device_name);
  report.fact("iterations", "iterations", found_by(analysis))
      .fact("iteration_us", "an iteration", us(analysis.duration), "us");
  if (timeline.unrecorded != 0) report.fact("unrecorded_us", "while not recorded", us(timeline.unrecorded), "us");
  report.fact("jitter_percent", "jitter", percent(analysis.jitter), "%")
      .fact("utilisation_percent", "device busy", percent(analysis.utilisation), "%")
      .fact("busy_us", "work of the device", us(analysis.busy), "us")
      .fact("kernels", "kernels", analysis.kernels)
      .fact("launches", "launching calls", analysis.launches)
      .fact("graph_launches", "of them, graphs", analysis.graph_launches)
      .fact("in_launches_us", "host time in them", us(analysis.in_launches), "us")
      .fact("synchronizations", "waits of the host", analysis.synchronizations)
      .fact("small_kernels_percent", "kernels below 50 us", percent(analysis.durations.share_small), "%")
      .fact("median_kernel_us", "median kernel", us(analysis.durations.median), "us");
  add_memory(analysis, report);
}

ReportTable idle_table(const Analysis& analysis) {
  ReportTable table("idle", "Idle time of the device, per iteration",
                    {{"cause"}, {"idle_us", "idle", "us", 1}, {"share_percent", "of the iteration", "%", 1}});
  for (std::size_t i = 0; i < kGapCauses; ++i) {
    if (analysis.idle[i] == 0) continue;
    const double share =
        static_cast<double>(analysis.idle[i]) / static_cast<double>(std::max<Nanoseconds>(analysis.duration, 1));
    table.row({in_words(static_cast<GapCause>(i)), us(analysis.idle[i]), percent(share)});
  }
  return table;
}

ReportTable scope_table(const Decision& decision) {
  ReportTable table("scopes", "What an iteration would take in a graph",
                    {{"scope"},
                     {"expected_us", "expected", "us", 1},
                     {"low_us", "from", "us", 1},
                     {"high_us", "to", "us", 1},
                     {"speedup", "times as fast", "", 2},
                     {"launches", "launches", "", 0},
                     {"obstacle", "in the way"}});
  for (const ScopePrediction& scope : decision.scopes) {
    if (scope.expected == 0) {
      table.row({in_words(scope.scope), {}, {}, {}, {}, {}, scope.obstacle});
    } else {
      table.row({in_words(scope.scope), us(scope.expected), us(scope.low), us(scope.high), scope.speedup,
                 scope.host_launches, scope.obstacle});
    }
  }
  return table;
}

// Of those that may be taken; what is said of the others is among the obstacles.
std::vector<std::string> memory_verdicts(const Decision& decision) {
  std::vector<std::string> verdicts;
  for (const ScopePrediction& scope : decision.scopes) {
    const std::string& verdict = scope.memory.verdict;
    if (scope.memory.would_fit.value_or(false))
      verdicts.push_back(fmt::format("{}: {}", in_words(scope.scope), verdict));
  }
  return verdicts;
}

ReportTable memory_table(const Decision& decision) {
  ReportTable table("memory", "Device memory that graphs would take",
                    {{"scope"},
                     {"pool_bytes", "pool", "bytes"},
                     {"input_bytes", "inputs", "bytes"},
                     {"executable_bytes", "executables", "bytes"},
                     {"fits"}});
  for (const ScopePrediction& scope : decision.scopes) {
    if (scope.expected == 0) {
      table.row({in_words(scope.scope), {}, {}, {}, {}});
    } else {
      const ScopeMemory& memory = scope.memory;
      table.row({in_words(scope.scope), memory.pool ? ReportValue(*memory.pool) : ReportValue(), memory.inputs,
                 memory.executables, memory.fits ? ReportValue(fit_in_words(memory)) : ReportValue()});
    }
  }
  return table;
}

ReportTable region_table(const Analysis& analysis, std::size_t most) {
  ReportTable table("regions", "Where the device waits most, per iteration",
                    {{"region"},
                     {"kind"},
                     {"entries"},
                     {"kernels", "kernels", "", 1},
                     {"busy_us", "busy", "us", 1},
                     {"idle_us", "idle", "us", 1}});
  for (std::size_t i = 0; i < std::min(most, analysis.regions.size()); ++i) {
    const Region& region = analysis.regions[i];
    table.row({region.name, in_words(region.kind), region.entries, region.kernels, us(region.busy), us(region.idle)});
  }
  return table;
}

ReportTable wait_table(const Analysis& analysis) {
  ReportTable table("waits", "Waits of the host that leave the device idle",
                    {{"call"}, {"inside"}, {"per_iteration", "per iteration", "", 2}, {"idle_us", "idle", "us", 1}});
  for (const Wait& wait : analysis.waits) table.row({wait.call, wait.inside, wait.per_iteration, us(wait.idle)});
  return table;
}

ReportTable cut_table(const GraphFragments& fragments) {
  ReportTable table("cuts", "What cuts its graphs apart",
                    {{"what"}, {"per_iteration", "per iteration", "", 2}, {"idle_us", "idle", "us", 1}});
  for (const GraphCut& cut : fragments.cuts) table.row({cut.what, cut.per_iteration, us(cut.idle)});
  return table;
}

Report call_section(const ScopePrediction& best) {
  Report calls("The call to write");
  calls.fact("cpp", "C++", best.cpp).fact("python", "Python", best.python);
  return calls;
}

}  // namespace

Report profile_report(const Timeline& timeline, const Analysis& analysis, const Decision& decision,
                      std::size_t regions) {
  Report report("Profile: " + timeline.source);
  add_facts(timeline, analysis, decision, report);
  report.list("reasons", "Why", decision.reasons).list("obstacles", "In the way", decision.obstacles);
  report.list("memory_verdicts", "Whether it fits", memory_verdicts(decision));
  report.list("notes", "Notes", notes(timeline, decision));
  report.table(idle_table(analysis));
  if (!decision.scopes.empty()) report.table(scope_table(decision)).table(memory_table(decision));
  if (decision.fragments) report.table(cut_table(*decision.fragments));
  report.table(region_table(analysis, regions));
  if (!analysis.waits.empty()) report.table(wait_table(analysis));
  if (decision.verdict == GraphVerdict::graph || decision.verdict == GraphVerdict::small_gain) {
    report.section("call", call_section(decision.scopes[decision.best]));
  }
  return report;
}

}  // namespace pianola

#include <pianola/profile/show/page_json.hpp>

#include <pianola/core/display_width.hpp>
#include <pianola/core/report_format.hpp>
#include <pianola/core/version.hpp>
#include <pianola/profile/quantities.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>

namespace pianola::profiling {
namespace {

constexpr std::size_t kTimelineBytes = 560'000;  // of a page that stays below 1 MB
constexpr std::size_t kTitleColumns = 200, kCellColumns = 160;
constexpr std::size_t kMostNotes = 20, kMostWaits = 40;
constexpr std::size_t kShownRegions = 50, kMostRegions = 200;  // those behind the first are folded

double share(double part, double whole) { return whole > 0 ? part / whole : 0; }
Nanoseconds rounded(double time) { return static_cast<Nanoseconds>(std::llround(time)); }
std::string number(std::size_t count) { return count_text(static_cast<double>(count)); }
std::string bytes_text(std::uint64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

std::string_view each(const Analysis& analysis) {
  return analysis.by == IterationsBy::nothing ? "in the whole profile" : "per iteration";
}

// Of an iteration, over all of them: device busy, gaps by cause, and the sums. What kernels waited for a copy is part of `busy`,
// not of `all_idle`.
struct MeanTimes {
  double busy = 0, all_idle = 0, whole = 0;
  std::array<double, kGapCauses> idle = {};
  [[nodiscard]] double of(GapCause cause) const { return idle[static_cast<std::size_t>(cause)]; }
};

MeanTimes mean_times(const Analysis& analysis) {
  MeanTimes mean;
  std::ranges::copy(analysis.idle, mean.idle.begin());
  mean.busy = static_cast<double>(analysis.busy);  // the median, where there is nothing to take the mean of
  if (!analysis.iterations.empty()) {
    const auto add = [](double sum, const Iteration& iteration) { return sum + static_cast<double>(iteration.busy); };
    mean.busy = std::accumulate(analysis.iterations.begin(), analysis.iterations.end(), 0.0, add) /
                static_cast<double>(analysis.iterations.size());
  }
  mean.all_idle = std::accumulate(mean.idle.begin(), mean.idle.end(), 0.0) - mean.of(GapCause::copy);
  mean.whole = mean.busy + mean.all_idle;
  return mean;
}

Json verdict(const Decision& decision) {
  constexpr std::array<std::pair<const char*, const char*>, 6> kMarks = {{{"good", "Graph it"},
                                                                          {"caution", "Small gain"},
                                                                          {"neutral", "Leave it"},
                                                                          {"done", "Graphed already"},
                                                                          {"caution", "Join its graphs"},
                                                                          {"neutral", "Cannot be told"}}};
  const auto& [style, words] = kMarks[static_cast<std::size_t>(decision.verdict)];
  return {{"style", style}, {"words", words}, {"headline", decision.headline}};
}

// Of a GPU: operations of the CPU are slowed by a profiler themselves.
bool has_unrecorded(const Analysis& analysis) {
  return analysis.device >= 0 && analysis.unrecorded != analysis.duration;
}

Json tile(std::string_view label, const std::string& value, const std::string& remark) {
  return Json::array({label, value, remark});
}

Json time_tile(const Analysis& analysis) {
  const std::string duration = duration_text(analysis.duration);
  if (analysis.by == IterationsBy::nothing) return tile("Time profiled", duration, "no iterations");
  if (analysis.iterations.size() < 2) return tile("Iteration", duration, "one iteration");
  if (has_unrecorded(analysis)) {
    return tile("Iteration", duration_text(analysis.unrecorded), duration + " while it was recorded");
  }
  return tile("Iteration", duration,
              fmt::format("median of {}, ± {}", analysis.iterations.size(), percent_text(analysis.jitter)));
}

Json idle_tile(const Analysis& analysis) {
  const MeanTimes mean = mean_times(analysis);
  const bool known = has_unrecorded(analysis);
  const Nanoseconds idle =
      known ? std::max<Nanoseconds>(analysis.unrecorded - analysis.busy, 0) : rounded(mean.all_idle);
  const double part = known ? 1 - analysis.utilisation : share(mean.all_idle, mean.whole);
  return tile("Device idle", duration_text(idle), percent_text(part) + " of the time");
}

Json launches_tile(const Analysis& analysis) {
  std::string remark = "of the host, " + counted_text(analysis.launches, "call", "calls");
  if (analysis.graph_launches > 0) remark += fmt::format(" (graphs: {})", count_text(analysis.graph_launches));
  return tile("In launch calls", duration_text(analysis.in_launches), remark);
}

Json speedup_tile(const Decision& decision) {
  if (decision.verdict == GraphVerdict::fragmented && decision.fragments) {
    return tile("Expected speed-up", factor_text(decision.fragments->speedup),
                duration_text(decision.fragments->joined) + ", as one graph");
  }
  if (decision.best >= decision.scopes.size() || decision.scopes[decision.best].expected <= 0) {
    return tile("Expected speed-up", "-",
                decision.verdict == GraphVerdict::graphed ? "graphs are in use" : "not predicted");
  }
  const ScopePrediction& best = decision.scopes[decision.best];
  return tile("Expected speed-up", factor_text(best.speedup),
              fmt::format("{}, {}", duration_text(best.expected), in_words(best.scope)));
}

// Why the device is idle. While kernels wait for a copy it is busy with that: see GapCause::copy.
struct Cause {
  GapCause cause;
  const char* mark;
  const char* meaning;
};
constexpr std::array kIdle = {
    Cause{GapCause::launch, "l", "the host had not issued the next work yet"},
    Cause{GapCause::synchronization, "s", "the host waited for the device and issued nothing meanwhile"},
    Cause{GapCause::data, "d", "the host was loading data"},
    Cause{GapCause::device, "w", "the next work was issued long before: latency between kernels, or a dependency"}};
constexpr Cause kCopies = {GapCause::copy, "c",
                           "of the busy time, that in which kernels waited for a copy and nothing else ran"};
static_assert(kIdle.size() + 1 == kGapCauses);

Json time_row(Json first, const char* meaning, double time, const MeanTimes& mean, const std::string& of_idle) {
  return {{"cells", Json::array({std::move(first), meaning, duration_text(rounded(time)),
                                 percent_text(share(time, mean.whole)), of_idle})}};
}

Json idle_row(const Cause& cause, const MeanTimes& mean) {
  const double time = mean.of(cause.cause);
  return time_row({{"mark", cause.mark}, {"text", in_words(cause.cause)}, {"note", cause.meaning}}, cause.meaning, time,
                  mean, cause.cause == GapCause::copy ? "" : percent_text(share(time, mean.all_idle)));
}

Json idle(const Analysis& analysis) {
  const MeanTimes mean = mean_times(analysis);
  if (mean.whole <= 0) return {};
  Json bar = Json::array();
  const auto part = [&](const char* mark, const char* name, double time) {
    if (time <= 0) return;
    const double of_all = share(time, mean.whole);
    bar.push_back({{"mark", mark},
                   {"share", of_all},
                   {"title", fmt::format("{}: {}, {}", name, percent_text(of_all), duration_text(rounded(time)))}});
  };
  part("k", "busy", mean.busy - mean.of(GapCause::copy));
  part("c", "waiting for a copy", mean.of(GapCause::copy));
  Json rows = Json::array();
  for (const Cause& cause : kIdle) {
    part(cause.mark, in_words(cause.cause), mean.of(cause.cause));
    rows.push_back(idle_row(cause, mean));
  }
  Json table = table_json(fmt::format("Time of the device {}", each(analysis)),
                          {"Cause", "~Meaning", "#Time", "#Share", "#Of idle"}, std::move(rows));
  Json sum = time_row("idle", "", mean.all_idle, mean, percent_text(mean.all_idle > 0 ? 1 : 0));
  sum["class"] = "sum";
  table["foot"] = Json::array(
      {std::move(sum), time_row({{"mark", "k"}, {"text", "busy"}}, "at least one stream had work", mean.busy, mean, ""),
       idle_row(kCopies, mean)});
  return {{"label",
           fmt::format("Device busy {}, idle {}; the table below splits it", percent_text(share(mean.busy, mean.whole)),
                       percent_text(share(mean.all_idle, mean.whole)))},
          {"bar", std::move(bar)},
          {"table", std::move(table)}};
}

// Where a bin ends: "2 us", "1 ms" for 1024 us.
std::string upper_bound(std::size_t bin) {
  const std::size_t microseconds = std::size_t{1} << bin;
  return microseconds < 1000 ? fmt::format("{} us", microseconds) : fmt::format("{} ms", microseconds / 1000);
}

std::string bin_words(std::size_t bin) {
  if (bin == 0) return "below 1 us";
  if (bin + 1 == DurationSummary{}.histogram.size()) return upper_bound(bin - 1) + " and more";
  return fmt::format("{} to {}", upper_bound(bin - 1), upper_bound(bin));
}

Json durations(const Analysis& analysis) {
  const DurationSummary& durations = analysis.durations;
  if (durations.kernels == 0) return {};
  std::size_t bins = 12;  // so that 1 ms is in sight
  Json bars = Json::array(), edges = Json::array(), rows = Json::array();
  for (std::size_t bin = 0; bin < durations.histogram.size(); ++bin) {
    const std::size_t kernels = durations.histogram[bin];
    if (kernels == 0) continue;
    bins = std::max(bins, bin + 1);
    const std::string part = percent_text(share(static_cast<double>(kernels), static_cast<double>(durations.kernels)));
    bars.push_back({{"bin", bin}, {"kernels", kernels}, {"words", bin_words(bin)}, {"share", part}});
    rows.push_back({{"cells", Json::array({bin_words(bin), number(kernels), part})}});
  }
  for (std::size_t bin = 0; bin + 1 < bins; ++bin) edges.push_back(upper_bound(bin));
  const std::string note = fmt::format(
      "{} kernels, the median {}, the longest {}. {} are shorter than 50 us; kernels of 1 ms or more take {} of the "
      "kernels' time.",
      number(durations.kernels), duration_text(durations.median), duration_text(durations.longest),
      percent_text(durations.share_small), percent_text(durations.share_long));
  return {{"note", note},
          {"bins", bins},
          {"bars", std::move(bars)},
          {"edges", std::move(edges)},
          {"table", table_json("Kernels by duration", {"Duration", "#Kernels", "#Of all"}, std::move(rows))}};
}

bool can_be_told(const ScopePrediction& scope) { return scope.expected > 0; }

// The first cell, then those of `figures`, or dashes where they unknown; and the last.
Json scope_row(const Decision& decision, std::size_t index, const std::vector<std::string>& figures) {
  const ScopePrediction& scope = decision.scopes[index];
  Json cells = Json::array({in_words(scope.scope)});
  for (const std::string& figure : figures) cells.push_back(can_be_told(scope) ? figure : "-");
  Json row = {{"cells", std::move(cells)}};
  if (index == decision.best) row["class"] = "best";
  return row;
}

Json scope_chart(const Analysis& analysis, const Decision& decision) {
  Nanoseconds longest = analysis.unrecorded;
  Json rows = Json::array();
  for (std::size_t i = 0; i < decision.scopes.size(); ++i) {
    const ScopePrediction& scope = decision.scopes[i];
    longest = std::max(longest, scope.high);
    const char* state = !scope.obstacle.empty() ? "hindered" : i == decision.best ? "best" : "";
    Json row = {{"what", in_words(scope.scope)}, {"state", state}, {"value", "unknown"}};
    if (can_be_told(scope)) {
      row["times"] = {scope.low, scope.expected, scope.high};
      row["value"] = fmt::format("{}, {}", duration_text(scope.expected), factor_text(scope.speedup));
    }
    rows.push_back(std::move(row));
  }
  return {{"now", analysis.unrecorded},
          {"words", "now " + duration_text(analysis.unrecorded)},
          {"longest", longest},
          {"rows", std::move(rows)}};
}

Json scope_table(const Analysis& analysis, const Decision& decision) {
  Json rows = Json::array({{{"cells", Json::array({"as it is", duration_text(analysis.unrecorded), "", factor_text(1),
                                                   count_text(analysis.launches), ""})}}});
  for (std::size_t i = 0; i < decision.scopes.size(); ++i) {
    const ScopePrediction& scope = decision.scopes[i];
    Json row = scope_row(
        decision, i,
        {duration_text(scope.expected), fmt::format("{} to {}", duration_text(scope.low), duration_text(scope.high)),
         factor_text(scope.speedup), count_text(scope.host_launches)});
    row["cells"].push_back(scope.obstacle.empty() ? "nothing seen" : scope.obstacle);
    rows.push_back(std::move(row));
  }
  return table_json("Predicted iteration time by what the graph takes in",
                    {"Scope", "#Expected", "#Between", "#Speed-up", "#Launch calls", "In the way"}, std::move(rows));
}

Json memory_table(const Decision& decision) {
  Json rows = Json::array();
  for (std::size_t i = 0; i < decision.scopes.size(); ++i) {
    const ScopeMemory& memory = decision.scopes[i].memory;
    rows.push_back(scope_row(decision, i,
                             {memory.pool ? bytes_text(*memory.pool) : "-", bytes_text(memory.inputs),
                              bytes_text(memory.executables), memory.fits ? fit_in_words(memory) : "-"}));
  }
  return table_json("Device memory by what the graph takes in", {"Scope", "#Pool", "#Inputs", "#Executables", "Fits"},
                    std::move(rows));
}

std::string memory_note(const Analysis& analysis, const Decision& decision) {
  const std::string nodes = fmt::format("Executables are reckoned with {} for each kernel, copy and memset.",
                                        bytes_text(decision.model.node_bytes));
  if (!analysis.memory) return fmt::format("{} As for the pool, {}.", nodes, cut(decision.memory_unknown, 1000));
  std::string note = fmt::format("An iteration as it is allocates up to {} of its own at a time. {}",
                                 bytes_text(analysis.memory->own), nodes);
  if (const auto& left = analysis.memory->left) {
    note += fmt::format(" The driver has {}{} left, and torch's allocator holds {} unused.",
                        analysis.memory->left_at_most ? "at most " : "", bytes_text(left->of_driver),
                        bytes_text(left->cached));
  } else if (!decision.memory_unknown.empty()) {
    note += fmt::format(" As for the room, {}.", cut(decision.memory_unknown, 1000));
  }
  return note;
}

Json scopes(const Analysis& analysis, const Decision& decision) {
  if (decision.scopes.empty()) return {};
  const MachineModel& model = decision.model;
  Json calls = Json::array();
  for (std::size_t i = 0; i < decision.scopes.size(); ++i) {
    const ScopePrediction& scope = decision.scopes[i];
    if (scope.cpp.empty() && scope.python.empty()) continue;
    calls.push_back(
        {{"scope", in_words(scope.scope)}, {"best", i == decision.best}, {"Python", scope.python}, {"C++", scope.cpp}});
  }
  return {{"note",
           fmt::format("Reckoned with {} of host time for an operation issued eagerly, {} to launch a graph, {} to "
                       "call a graphed callable, and {} ({} to {}) of device time between two kernels of a graph.",
                       duration_text(model.launch), duration_text(model.graph_launch), duration_text(model.callable),
                       duration_text(model.node), duration_text(model.node_low), duration_text(model.node_high))},
          {"chart", scope_chart(analysis, decision)},
          {"table", scope_table(analysis, decision)},
          {"memory", memory_table(decision)},
          {"memory_note", memory_note(analysis, decision)},
          {"calls", std::move(calls)}};
}

// Without what it begins with because of its kind, which has a column of its own.
std::string_view own_name(const Region& region) {
  std::string_view name = region.name;
  for (const std::string_view prefix : {kBackwardPrefix, kModulePrefix}) {
    if (name.size() > prefix.size() && name.starts_with(prefix)) name.remove_prefix(prefix.size());
  }
  return name;
}

// Where ranges lie inside each other, so do their idle times: the bars are shares of the largest.
Json region_rows(std::span<const Region> regions, Nanoseconds most_idle) {
  constexpr std::array kKinds = {"annotation", "operation", "autograd node", "module"};
  const auto figure = [](std::string text, auto value) { return Json{{"text", std::move(text)}, {"value", value}}; };
  Json rows = Json::array();
  for (const Region& region : regions) {
    Json idle = figure(duration_text(region.idle), region.idle);
    idle["bar"] = share(static_cast<double>(region.idle), static_cast<double>(most_idle));
    rows.push_back({{"cells", Json::array({{{"code", cut(own_name(region), kCellColumns)}},
                                           kKinds[static_cast<std::size_t>(region.kind)],
                                           figure(number(region.entries), region.entries),
                                           figure(count_text(region.kernels), region.kernels),
                                           figure(duration_text(region.busy), region.busy),
                                           std::move(idle)})}});
  }
  return rows;
}

Json regions(const Analysis& analysis) {
  if (analysis.regions.empty()) return {};
  const std::span<const Region> all(analysis.regions.data(), std::min(analysis.regions.size(), kMostRegions));
  const std::span<const Region> shown = all.first(std::min(all.size(), kShownRegions));
  const Nanoseconds most_idle = std::ranges::max_element(all, {}, &Region::idle)->idle;
  const auto table = [&](std::string_view caption, std::span<const Region> some) {
    return table_json(caption, {"Region", "Kind", "#Entries", "#Kernels", "#Busy", "#Idle"},
                      region_rows(some, most_idle));
  };
  Json tables = Json::array({table(fmt::format("Regions {}, those with most idle time first", each(analysis)), shown)});
  if (all.size() > shown.size()) tables.push_back(table("Further regions", all.subspan(shown.size())));
  return tables;
}

Json waits(const Analysis& analysis) {
  if (analysis.waits.empty()) return {};
  const std::size_t shown = std::min(analysis.waits.size(), kMostWaits);
  Json rows = Json::array();
  for (const Wait& wait : std::span(analysis.waits).first(shown)) {
    rows.push_back({{"cells", Json::array({{{"code", cut(wait.call, kCellColumns)}},
                                           cut(wait.inside, kCellColumns),
                                           count_text(wait.per_iteration),
                                           duration_text(wait.idle)})}});
  }
  return {{"table", table_json(fmt::format("Calls that waited for the device and left it idle, {}", each(analysis)),
                               {"Call", "Inside", "#Calls", "#Idle"}, std::move(rows))},
          {"further", analysis.waits.size() - shown}};
}

Json how_iterations_were_found(const Analysis& analysis) {
  const std::string found = number(analysis.iterations.size());
  if (analysis.by == IterationsBy::repetition) return found + ", by the sequence of kernels that repeats";
  if (analysis.by == IterationsBy::range) {
    return {{"text", found + ", each an entry of the range "}, {"code", cut(analysis.range, kTitleColumns)}};
  }
  return "none found; all numbers are of the whole profile" +
         (analysis.problem.empty() ? "" : ". " + cut(analysis.problem, 4 * kTitleColumns));
}

std::string device_in_words(const Timeline& timeline, const Analysis& analysis) {
  if (analysis.device < 0) return "CPU";
  if (timeline.device_name.empty()) return fmt::format("device {}", analysis.device);
  return fmt::format("{}, device {}", cut(timeline.device_name, kTitleColumns), analysis.device);
}

Json facts(const Timeline& timeline, const Analysis& analysis) {
  Json facts = Json::array();
  const auto fact = [&facts](const char* name, Json value) { facts.push_back(Json::array({name, std::move(value)})); };
  if (!timeline.source.empty()) fact("Source", cut(timeline.source, 4 * kTitleColumns));
  fact("Device", device_in_words(timeline, analysis));
  fact("Process", fmt::to_string(analysis.process));
  fact("Time covered", duration_text(timeline.extent().duration()));
  fact("Events", fmt::format("{} of devices, {} calls, {} ranges", number(timeline.work.size()),
                             number(timeline.calls.size()), number(timeline.ranges.size())));
  fact("Iterations", how_iterations_were_found(analysis));
  if (analysis.warmup > 0) fact("Left out", fmt::format("{} at the beginning, as warm-up", analysis.warmup));
  for (std::size_t i = 0; i < std::min(timeline.notes.size(), kMostNotes); ++i) {
    fact("Note", cut(timeline.notes[i], 4 * kTitleColumns));
  }
  return facts;
}

// The parameters are the last pair of parentheses, where the text ends with it.
std::string_view without_parameters(std::string_view name) {
  if (name.empty() || name.back() != ')') return name;
  int depth = 0;
  for (std::size_t i = name.size(); i-- > 1;) {
    if (name[i] == ')') ++depth;
    if (name[i] == '(' && --depth == 0) return name.substr(0, i);
  }
  return name;
}

}  // namespace

Json table_json(std::string_view caption, std::initializer_list<const char*> heads, Json rows) {
  return {{"caption", caption},
          {"heads", Json(std::vector<std::string>(heads.begin(), heads.end()))},
          {"rows", std::move(rows)}};
}

// A character that takes columns and marks that take none are seldom longer than that, and names may have megabytes.
std::string cut(std::string_view text, std::size_t columns) {
  return shorten(one_line(text.substr(0, 16 * columns)), columns);
}

std::string readable(std::string_view kernel) {
  constexpr std::string_view kVoid = "void ";
  if (kernel.starts_with(kVoid)) kernel.remove_prefix(kVoid.size());
  kernel = kernel.substr(0, kernel.find(" [clone"));
  std::string name(without_parameters(kernel));
  for (const std::string_view space : {"at::native::", "(anonymous namespace)::"}) {
    for (std::size_t at = name.find(space); at != std::string::npos; at = name.find(space, at)) {
      name.erase(at, space.size());
    }
  }
  return name;
}

Json page_json(const Timeline& timeline, const Analysis& analysis, const Decision& decision, std::string_view title) {
  const std::string shown(title.empty() ? std::string_view(timeline.source) : title);
  return {{"title", cut(shown.empty() ? "Profile" : shown, kTitleColumns)},
          {"version", version()},
          {"verdict", verdict(decision)},
          {"tiles",
           Json::array(
               {time_tile(analysis),
                tile("Device utilisation", percent_text(analysis.utilisation), "busy " + duration_text(analysis.busy)),
                idle_tile(analysis),
                tile("Kernels", count_text(analysis.kernels), "median " + duration_text(analysis.durations.median)),
                launches_tile(analysis), speedup_tile(decision)})},
          {"reasons", decision.reasons},
          {"obstacles", decision.obstacles},
          {"timeline", timeline_json(timeline, analysis, kTimelineBytes)},
          {"idle", idle(analysis)},
          {"durations", durations(analysis)},
          {"scopes", scopes(analysis, decision)},
          {"regions", regions(analysis)},
          {"waits", waits(analysis)},
          {"facts", facts(timeline, analysis)}};
}

}  // namespace pianola::profiling

#include <pianola/audit/checks/checks.hpp>

#include <pianola/audit/words.hpp>
#include <pianola/core/report_format.hpp>
#include <pianola/graph/run_memory.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

namespace pianola::auditing {
namespace {

std::string bytes_in_words(std::uint64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

// The operation of the last run whose line has most where most is in use; nothing: memory that no operation asked for.
std::optional<OpAt> largest_user(const ObservedRuns& runs, const MemoryForecast& forecast) {
  const auto& picture = forecast.picture;
  const auto is_its = [&](const auto& block) { return picture.owners[block.owner] == forecast.at_peak.front().place; };
  const auto block = std::ranges::find_if(picture.blocks, is_its);
  const OpAt at{runs.size() - 1, static_cast<std::size_t>(block == picture.blocks.end() ? -1 : block->made_in)};
  return at.op < runs.run(at.run).notes.size() ? std::optional(at) : std::nullopt;
}

std::string most_in_words(const Finding& finding, const MemoryForecast& forecast) {
  const MemoryUser& most = forecast.at_peak.front();
  const char* const its = finding.place.known() ? "this line has"
                          : !finding.op.empty() ? "this operation has"
                                                : "memory that no operation asked for is";
  return fmt::format("of {} in use at most {} {} in {}", bytes_in_words(forecast.bound), its,
                     bytes_in_words(most.bytes), counted(most.blocks, "block", "blocks"));
}

// A capture gives what torch's allocator holds unused back itself, where the driver has less than that.
bool finds_room(const MemoryForecast& forecast) {
  if (forecast.fits().value_or(true)) return true;
  return *forecast.would_fit() && *forecast.free < forecast.returnable;
}

std::string fix_of(const MemoryForecast& forecast, std::string_view otherwise) {
  if (*forecast.would_fit()) {
    return fmt::format("before the capture torch.cuda.empty_cache() gives {} back",
                       bytes_in_words(forecast.returnable));
  }
  MemoryForecast planned = forecast;
  planned.pool = forecast.planned;
  if (*planned.would_fit()) return fmt::format("plan_memory: its pool takes {}", bytes_in_words(forecast.planned));
  return std::string(otherwise);
}

}  // namespace

Findings check_memory(const ObservedRuns& runs, std::optional<std::size_t> free) {
  if (runs.size() == 0 || !runs.runs().back().memory) return {};
  const ObservedRun& last = runs.runs().back();
  const auto in_what_is_left = [&](MemoryForecast forecast) {
    if (!free) return forecast;
    forecast.free = *free;
    forecast.cached = forecast.returnable = 0;
    return forecast;
  };
  if (finds_room(in_what_is_left(graph::sizes_of(*last.memory, last.trace, runs.device())))) return {};
  const MemoryForecast forecast = in_what_is_left(graph::forecast_of(*last.memory, last.trace, runs.device()));
  if (finds_room(forecast)) return {};  // by now
  const std::optional<OpAt> user = forecast.at_peak.empty() ? std::nullopt : largest_user(runs, forecast);
  Finding finding = user ? runs.finding("PG908", *user) : Finding::of("PG908");
  finding.iteration = static_cast<int>(runs.size());
  finding.what = fmt::format("a graph of the step does not fit{} into the memory that is left",
                             *forecast.would_fit() ? " yet" : "");
  finding.evidence = forecast.numbers();
  if (!forecast.at_peak.empty()) finding.evidence += "; " + most_in_words(finding, forecast);
  finding.fix = fix_of(forecast, finding.rule->fix);
  return {std::move(finding)};
}

}  // namespace pianola::auditing

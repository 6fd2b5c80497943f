#include <pianola/profile/analyse/iterations.hpp>

#include <pianola/profile/analyse/issue_sequence.hpp>
#include <pianola/profile/analyse/median.hpp>
#include <pianola/profile/analyse/range_iterations.hpp>
#include <pianola/profile/analyse/repetition.hpp>
#include <pianola/profile/quantities.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>

namespace pianola::profiling {
namespace {

constexpr std::size_t kFewestIterations = 3;  // Iterations that an answer should rest on.
constexpr double kComplete = 0.97;            // Of a typical iteration's work, that which a last one must have.
constexpr double kLeastShare = 0.1;           // Of the device's time at work, that which iterations must make up.

FoundIterations iterations_at(const IssueSequence& sequence, const Repetition& repetition) {
  FoundIterations found{.by = IterationsBy::repetition, .range = "", .problem = "", .boundaries = {}};
  const Repetition rotated = begin_at_gap(sequence, repetition);
  for (const std::size_t cut : rotated.cuts) {
    const Boundary boundary{sequence.items[cut].device.begin, sequence.items[cut].host.begin};
    if (found.boundaries.empty() || boundary.device > found.boundaries.back().device) {
      found.boundaries.push_back(boundary);
    }
  }
  const std::size_t last = rotated.cuts.back();
  if (found.count() >= kFewestIterations || completeness(sequence, repetition, last) < kComplete) return found;
  Nanoseconds end = found.boundaries.back().device;
  for (std::size_t i = last; i < std::min(last + repetition.length(), sequence.items.size()); ++i) {
    end = std::max(end, sequence.items[i].device.end);
  }
  found.boundaries.push_back({end, end});
  return found;
}

double share_of_work(const DeviceWorkList& list, const FoundIterations& found) {
  Nanoseconds inside = 0, all = 0;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const TimeSpan& time = list[i].time;
    all += time.duration();
    if (time.begin >= found.boundaries.front().device && time.begin < found.boundaries.back().device) {
      inside += time.duration();
    }
  }
  return all == 0 ? 1 : static_cast<double>(inside) / static_cast<double>(all);
}

FoundIterations all_as_one(const DeviceWorkList& list, std::string why) {
  FoundIterations found;
  found.problem = std::move(why);
  Nanoseconds end = list[0].time.end;
  for (std::size_t i = 0; i < list.size(); ++i) end = std::max(end, list[i].time.end);
  const TimeSpan all = list.timeline->extent();
  found.boundaries = {{list[0].time.begin, all.begin}, {end, all.end}};
  return found;
}

std::optional<FoundIterations> iterations_by_repetition(const DeviceWorkList& list, const Issued& issued) {
  const IssueSequence sequence = issue_sequence(list, issued);
  const std::optional<Repetition> repetition = find_repetition(sequence);
  if (!repetition) return std::nullopt;
  FoundIterations found = iterations_at(sequence, *repetition);
  if (found.boundaries.size() < 2) return std::nullopt;
  if (const double share = share_of_work(list, found); share < kLeastShare) {
    return all_as_one(list,
                      fmt::format("what repeats, {} times, is only {} of the device's work; profile less of other "
                                  "work, or name the annotation that begins an iteration",
                                  found.count(), percent_text(share)));
  }
  return found;
}

std::string counted_work(const DeviceWorkList& list) {
  const auto count = static_cast<double>(list.size());
  if (list.on_cpu()) return counted_text(count, "operation", "operations");
  const auto kernel = [&](std::size_t index) { return is_kernel(list.timeline->work[index]); };
  if (std::ranges::all_of(list.order, kernel)) return counted_text(count, "kernel", "kernels");
  return counted_text(count, "piece of work", "pieces of work");
}

std::string why_nothing_repeats(const DeviceWorkList& list) {
  std::unordered_map<NameId, std::size_t> seen;
  std::size_t most = 0;
  for (std::size_t i = 0; i < list.size(); ++i) most = std::max(most, ++seen[list[i].name]);
  const auto names = static_cast<double>(seen.size());
  const std::string seen_there = most == 1 ? fmt::format("the work never repeats: {} seen once", counted_work(list))
                                           : fmt::format("no sequence of work repeats 3 times or more among {} of {}",
                                                         counted_work(list), counted_text(names, "name", "names"));
  return seen_there + "; profile at least 3 iterations, or name the annotation that begins one";
}

Nanoseconds duration_of(const FoundIterations& found, std::size_t i) {
  return found.boundaries[i + 1].device - found.boundaries[i].device;
}

void drop_warmup(FoundIterations& found) {
  if (found.count() < kFewestIterations) return;
  std::vector<Nanoseconds> durations;
  for (std::size_t i = 0; i < found.count(); ++i) durations.push_back(duration_of(found, i));
  const Nanoseconds middle = median(durations);
  const auto usual = std::ranges::find_if(durations, [&](Nanoseconds duration) { return duration <= 2 * middle; });
  found.warmup = static_cast<std::size_t>(usual - durations.begin());
  found.boundaries.erase(found.boundaries.begin(), found.boundaries.begin() + (usual - durations.begin()));
}

}  // namespace

FoundIterations find_iterations(const DeviceWorkList& list, const Issued& issued, const std::string& range) {
  std::optional<FoundIterations> found;
  if (!range.empty()) {
    found = iterations_by_range(list, issued, range, 1);
    if (!found) refuse_range(list, range);
  }
  if (!found) found = iterations_by_range(list, issued, kProfilerStep, kFewestIterations);
  // The last boundary of ranges is the end of the last one's work, not the begin of another one.
  if (found && found->count() > kFewestIterations) found->boundaries.pop_back();
  if (!found) found = iterations_by_repetition(list, issued);
  if (!found) found = all_as_one(list, why_nothing_repeats(list));
  drop_warmup(*found);
  return std::move(*found);
}

}  // namespace pianola::profiling

#include <tests/fuzz/judged_timeline.hpp>

#include <tests/fuzz/fuzz_target.hpp>

#include <pianola/core/error.hpp>
#include <pianola/core/report.hpp>
#include <pianola/profile/analyse/analysis.hpp>
#include <pianola/profile/decide/decision.hpp>
#include <pianola/profile/show/chrome_writer.hpp>
#include <pianola/profile/show/html_report.hpp>
#include <pianola/profile/show/profile_report.hpp>

#include <algorithm>

namespace pianola::fuzz {
namespace {

void check_times(const Timeline& timeline) {
  const auto forward = [](const auto& event) { return event.time.begin <= event.time.end; };
  expect(std::ranges::all_of(timeline.work, forward) && std::ranges::all_of(timeline.calls, forward) &&
             std::ranges::all_of(timeline.ranges, forward),
         "nothing ends before it begins");
  expect(timeline.extent().duration() >= 0, "the whole can be told in nanoseconds");
}

void check_figures(const Analysis& analysis) {
  expect(analysis.utilisation >= 0 && analysis.utilisation <= 1, "a device is busy between 0 % and 100 % of the time");
  expect(analysis.duration >= 0 && analysis.busy >= 0, "an iteration takes no negative time");
  expect(analysis.kernels >= 0 && analysis.launches >= 0, "counts are not negative");
  for (const Nanoseconds idle : analysis.idle) expect(idle >= 0, "idle time is not negative");
  for (const Region& region : analysis.regions)
    expect(region.busy >= 0 && region.idle >= 0, "a region's times are not");
}

}  // namespace

void judge(const Timeline& timeline, bool draws) {
  check_times(timeline);
  const Analysis analysis = [&] {
    try {
      return analyse(timeline);
    } catch (const UsageError&) {
      return Analysis();  // There is no work, or no iteration.
    }
  }();
  if (analysis.iterations.empty()) return;
  check_figures(analysis);
  const Decision decision = decide(timeline, analysis);
  const Report report = profile_report(timeline, analysis, decision, 20);
  expect(!report.to_text().empty() && !report.to_json().empty(), "a report says something");
  if (!draws) return;
  expect(!to_html(timeline, analysis, decision).empty(), "a page shows something");
  static const InputFile trace("_written.json");
  write_chrome_trace(timeline, analysis, trace.write(nullptr, 0));
}

}  // namespace pianola::fuzz

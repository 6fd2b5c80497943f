#include <pianola/profile/decide/comparison.hpp>

#include <pianola/profile/quantities.hpp>

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>

namespace pianola {
namespace {

using profiling::count_text;
using profiling::counted_text;
using profiling::duration_text;

double us(Nanoseconds time) { return static_cast<double>(time) / 1000; }

double mib(std::uint64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

double ratio(double after, double before) { return before == 0 ? 0 : after / before; }

std::string headline(const Analysis& before, const Analysis& after, const ProfileComparison& compared) {
  const char* word = compared.speedup >= 1 ? "as fast" : "as fast, so slower than before";
  return fmt::format("{:.2f} times {}: {} instead of {} per iteration, {} instead of {}.", compared.speedup, word,
                     duration_text(after.unrecorded), duration_text(before.unrecorded),
                     counted_text(after.launches, "launching call", "launching calls"), count_text(before.launches));
}

ReportTable side_by_side(const Analysis& before, const Analysis& after) {
  ReportTable table("measures", "Per iteration",
                    {{"measure"}, {"before", "", "", 1}, {"after", "", "", 1}, {"ratio", "after / before", "", 3}});
  const auto add = [&](const char* name, double one, double other) {
    table.row({name, one, other, one == 0 ? ReportValue() : ReportValue(ratio(other, one))});
  };
  add("time, us", us(before.unrecorded), us(after.unrecorded));
  add("device busy, %", 100 * before.utilisation, 100 * after.utilisation);
  add("work of the device, us", us(before.busy), us(after.busy));
  add("kernels", before.kernels, after.kernels);
  add("launching calls", before.launches, after.launches);
  add("of them, graphs", before.graph_launches, after.graph_launches);
  add("host time in them, us", us(before.in_launches), us(after.in_launches));
  add("waits of the host", before.synchronizations, after.synchronizations);
  add("jitter, %", 100 * before.jitter, 100 * after.jitter);
  if (!before.memory || !after.memory) return table;
  const auto add_memory = [&](const char* name, std::uint64_t one, std::uint64_t other) {
    if (one != 0 && other != 0) add(name, mib(one), mib(other));
  };
  add("memory of its own at most, MiB", mib(before.memory->own), mib(after.memory->own));
  add_memory("allocated at most, MiB", before.memory->allocated, after.memory->allocated);
  add_memory("reserved at most, MiB", before.memory->reserved, after.memory->reserved);
  return table;
}

}  // namespace

ProfileComparison compare_profiles(const Analysis& before, const Decision& decision, const Analysis& after) {
  ProfileComparison compared{
      .speedup = ratio(static_cast<double>(before.unrecorded), static_cast<double>(after.unrecorded)),
      .launches_replaced = before.launches - after.launches};
  // Which scope was taken shows in how many calls still launch something; of two that are as near, it is the larger one.
  double nearest = INFINITY;
  for (const ScopePrediction& scope : decision.scopes) {
    const double distance = std::abs(scope.host_launches - after.launches);
    if (scope.expected == 0 || distance > nearest) continue;
    nearest = distance;
    compared.scope = scope.scope;
    compared.predicted = scope.expected;
    compared.prediction_error = static_cast<double>(after.unrecorded) / static_cast<double>(scope.expected) - 1;
  }
  return compared;
}

Report comparison_report(const Analysis& before, const Decision& decision, const Analysis& after) {
  const ProfileComparison compared = compare_profiles(before, decision, after);
  Report report("Before and after");
  report.fact("headline", "result", headline(before, after, compared))
      .fact("speedup", "times as fast", compared.speedup)
      .fact("launches_replaced", "launching calls replaced", compared.launches_replaced);
  if (compared.predicted != 0) {
    report.fact("scope", "scope", in_words(compared.scope))
        .fact("predicted_us", "predicted", us(compared.predicted), "us")
        .fact("measured_us", "measured", us(after.unrecorded), "us")
        .fact("prediction_error_percent", "measured against predicted", 100 * compared.prediction_error, "%");
  }
  report.table(side_by_side(before, after));
  return report;
}

}  // namespace pianola

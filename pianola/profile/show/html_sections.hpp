#pragma once
#include <pianola/profile/analyse/analysis.hpp>
#include <pianola/profile/decide/decision.hpp>

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace pianola::profiling {

// The parts of the page, top to bottom. Each is whole elements; a section without content is empty.

/// The verdict in a sentence, with its mark, and the key numbers.
[[nodiscard]] std::string verdict_header(const Analysis& analysis, const Decision& decision, std::string_view title);
[[nodiscard]] std::string reasons_section(const Decision& decision);
/// The typical iteration as rows of marks, in at most `bytes` bytes or close to it.
[[nodiscard]] std::string timeline_section(const Timeline& timeline, const Analysis& analysis, std::size_t bytes);
[[nodiscard]] std::string idle_section(const Analysis& analysis);
[[nodiscard]] std::string durations_section(const Analysis& analysis);
[[nodiscard]] std::string scopes_section(const Analysis& analysis, const Decision& decision);
[[nodiscard]] std::string regions_section(const Analysis& analysis);
[[nodiscard]] std::string waits_section(const Analysis& analysis);
[[nodiscard]] std::string foot(const Timeline& timeline, const Analysis& analysis);

/// What rates are of: "per iteration", "in the whole profile".
[[nodiscard]] inline std::string_view each(const Analysis& analysis) {
  return analysis.by == IterationsBy::nothing ? "in the whole profile" : "per iteration";
}

/// Of an iteration, over all of them: device busy, gaps by cause, and the sums. What kernels waited for a copy is part
/// of `busy`, not of `all_idle`.
struct MeanTimes {
  double busy = 0;
  std::array<double, kGapCauses> idle = {};
  double all_idle = 0;
  double whole = 0;
};
[[nodiscard]] MeanTimes mean_times(const Analysis& analysis);

}  // namespace pianola::profiling

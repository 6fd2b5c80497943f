#pragma once
#include <pianola/core/export.hpp>
#include <pianola/core/report.hpp>
#include <pianola/profile/analyse/analysis.hpp>
#include <pianola/profile/decide/decision.hpp>
#include <pianola/profile/timeline.hpp>

namespace pianola {

/// Two profiles of one program: before graphs and with them.
struct ProfileComparison {
  double speedup = 0;            ///< Of an iteration.
  double launches_replaced = 0;  ///< Launching calls per iteration that are gone.
  GraphScope scope = {};         ///< The one of the prediction that comes nearest.
  Nanoseconds predicted = 0;     ///< From the profile before; 0: there was no prediction.
  double prediction_error = 0;   ///< Measured over predicted, less 1.
};

/// @param decision  Of the profile before.
[[nodiscard]] PIANOLA_API ProfileComparison compare_profiles(const Analysis& before, const Decision& decision,
                                                             const Analysis& after);

/// What one launch replaced: both profiles side by side, and the prediction against what came of it. Times are
/// microseconds, of an iteration that is not recorded where that is known. Memory is there where both profiles say what the
/// allocator did.
[[nodiscard]] PIANOLA_API Report comparison_report(const Analysis& before, const Decision& decision,
                                                   const Analysis& after);

}  // namespace pianola

#pragma once
#include <pianola/profile/analyse/iterations.hpp>

#include <optional>
#include <string_view>

namespace pianola::profiling {

inline constexpr std::string_view kProfilerStep = "ProfilerStep";

/// A name without a counter at its end: "ProfilerStep#12" is "ProfilerStep", "Optimizer.step#AdamW.step" stays.
[[nodiscard]] std::string_view without_counter(std::string_view name);

/// Iterations that begin with the entries of an annotation, by its name with or without counter; nested entries and
/// those without work count as part of the one around or before. None where there are fewer than `fewest` entries.
/// The last boundary is the end of the work that was issued before the last entry ended.
[[nodiscard]] std::optional<FoundIterations> iterations_by_range(const DeviceWorkList& list, const Issued& issued,
                                                                 std::string_view range, std::size_t fewest);

/// @throws UsageError  Always: the annotation is not there, or nothing was issued after it began.
[[noreturn]] void refuse_range(const DeviceWorkList& list, std::string_view range);

}  // namespace pianola::profiling

#pragma once
#include <pianola/profile/analyse/analysis.hpp>
#include <pianola/profile/analyse/device_work.hpp>

#include <cstddef>

namespace pianola::profiling {

/// How long the kernels at the positions from `first` to before `last` run.
[[nodiscard]] DurationSummary summarize_durations(const DeviceWorkList& list, std::size_t first, std::size_t last);

/// The bin of DurationSummary::histogram.
[[nodiscard]] std::size_t duration_bin(Nanoseconds duration) noexcept;

}  // namespace pianola::profiling

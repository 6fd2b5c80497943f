#pragma once
#include <pianola/profile/analyse/analysis.hpp>
#include <pianola/profile/analyse/device_work.hpp>
#include <pianola/profile/analyse/issued.hpp>

#include <cstddef>
#include <string>
#include <vector>

namespace pianola::profiling {

/// Where an iteration begins: on the device with its first work, on the host when that is issued or its range entered.
struct Boundary {
  Nanoseconds device = 0;
  Nanoseconds host = 0;
  friend bool operator==(const Boundary&, const Boundary&) = default;
};

/// Iteration i lasts from boundaries[i] to boundaries[i + 1].
struct FoundIterations {
  IterationsBy by = IterationsBy::nothing;
  std::string range;
  std::string problem;
  std::vector<Boundary> boundaries;  ///< At least two, ascending on the device.
  std::size_t warmup = 0;            ///< Slow ones at the beginning that were left out.

  [[nodiscard]] std::size_t count() const noexcept { return boundaries.size() - 1; }
  [[nodiscard]] TimeSpan on_device() const { return {boundaries.front().device, boundaries.back().device}; }
  [[nodiscard]] TimeSpan on_host() const { return {boundaries.front().host, boundaries.back().host}; }
};

/// By the annotation `range`; where it is empty by torch.profiler's "ProfilerStep#N", else by repetition, else one.
///
/// Left out are iterations of which a part is missing, slow ones at the beginning, and the last one, whose end is not
/// seen, where three others remain.
/// @throws UsageError  There is no such annotation, or nothing was issued after it began.
[[nodiscard]] FoundIterations find_iterations(const DeviceWorkList& list, const Issued& issued,
                                              const std::string& range);

}  // namespace pianola::profiling

#pragma once
#include <pianola/profile/analyse/analysis.hpp>
#include <pianola/profile/analyse/issued.hpp>
#include <pianola/profile/analyse/iterations.hpp>

#include <cstddef>
#include <optional>
#include <vector>

namespace pianola::profiling {

/// The figures of each iteration. What a call issued tells its iteration; a call that issued nothing counts to the
/// iteration that the host was issuing.
[[nodiscard]] std::vector<Iteration> iteration_figures(const DeviceWorkList& list, const Issued& issued,
                                                       const FoundIterations& found, const std::vector<Gap>& gaps);

/// The index of the iteration of a call; none: it belongs to none, to another device, or it is part of another call.
[[nodiscard]] std::optional<std::size_t> iteration_of_call(const DeviceWorkList& list, const Issued& issued,
                                                           const std::vector<Iteration>& iterations, std::size_t call);

}  // namespace pianola::profiling

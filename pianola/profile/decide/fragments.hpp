#pragma once
#include <pianola/profile/analyse/analysis.hpp>
#include <pianola/profile/decide/decision.hpp>

#include <optional>

namespace pianola::profiling {

/// The graphs of an iteration, and what lies between them; nothing where no iteration launches several.
///
/// Of the work between two graphs the host waits count most: a read of a value, say, which the second graph had to wait for.
/// Else it is the work that the host issues itself; else the second launch came late by itself.
[[nodiscard]] std::optional<GraphFragments> find_fragments(const Timeline& timeline, const Analysis& analysis,
                                                           const MachineModel& model);

}  // namespace pianola::profiling

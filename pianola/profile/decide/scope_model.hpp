#pragma once
#include <pianola/profile/analyse/host_pace.hpp>
#include <pianola/profile/decide/decision.hpp>
#include <pianola/profile/decide/work_parts.hpp>

#include <array>
#include <cstddef>

namespace pianola::profiling {

/// What the prediction of an iteration rests on.
struct IterationCosts {
  Nanoseconds now = 0;     ///< Analysis::unrecorded.
  Nanoseconds busy = 0;    ///< Union of the device's work.
  std::size_t nodes = 0;   ///< Kernels, copies and memsets.
  Nanoseconds pauses = 0;  ///< HostPace::pauses.
  bool waits = false;      ///< The host waits for the device in each iteration.
};

[[nodiscard]] IterationCosts costs_of(const Analysis& analysis, const WorkParts& parts, const HostPace& pace);

// Note [Prediction]
// In a graph the device does the same work; between two nodes it needs about a microsecond, whoever is late otherwise. The
// host launches the graphs, and issues eagerly what is outside of them. The two run side by side, so that an iteration
// takes as long as the slower of them; where the host waits for the device once an iteration, one after the other, as far
// as the host has to be done before the device can begin.
//
//   device = busy + nodes * node
//   host   = graphs * graph_launch + what the host takes now for the launches outside of the graphs + pauses
//   waits:  device + the first graph's launch + pauses, or the host's if that is longer;  else: the longer of the two

/// In the order of GraphScope. `obstacle` says only what the model cannot know; `cpp` and `python` are left out.
[[nodiscard]] std::array<ScopePrediction, kGraphScopes> predict(const IterationCosts& costs, const WorkParts& parts,
                                                                const MachineModel& model);

}  // namespace pianola::profiling

#pragma once
#include <pianola/core/error.hpp>
#include <pianola/profile/decide/decision.hpp>
#include <pianola/profile/decide/work_parts.hpp>

#include <array>
#include <string>
#include <vector>

namespace pianola::profiling {

/// What stands in the way of a graph, as far as a profile shows it.
struct Obstacle {
  Diagnosis problem;  ///< "the host waits in cudaStreamSynchronize (aten::item) in the middle of the iteration"
  std::array<bool, kGraphScopes> blocks = {};  ///< Which scopes, in the order of GraphScope.
};

/// "aten::item, in 'logging'": the innermost operation around a call, and the innermost annotation; may be empty.
[[nodiscard]] std::string place_of(const Timeline& timeline, const HostCall& call);
/// A call that waits for the device, and what to do. It blocks nothing yet.
[[nodiscard]] Obstacle wait_of(const Timeline& timeline, const HostCall& call);

/// Waits of the host between launches, and work that differs from iteration to iteration.
[[nodiscard]] std::vector<Obstacle> find_obstacles(const Timeline& timeline, const Analysis& analysis,
                                                   const WorkParts& parts);

}  // namespace pianola::profiling

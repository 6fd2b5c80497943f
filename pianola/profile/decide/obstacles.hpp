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

/// Waits of the host between launches, and work that differs from iteration to iteration.
[[nodiscard]] std::vector<Obstacle> find_obstacles(const Timeline& timeline, const Analysis& analysis,
                                                   const WorkParts& parts);

}  // namespace pianola::profiling

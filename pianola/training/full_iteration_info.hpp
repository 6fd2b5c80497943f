#pragma once
#include <pianola/callable/graphed_info.hpp>
#include <pianola/core/export.hpp>
#include <pianola/core/report.hpp>
#include <pianola/parallel/branch_info.hpp>
#include <pianola/training/full_iteration_options.hpp>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace pianola {

/// One signature of a stage: microbatches of these shapes and this structure.
struct IterationInfo {
  Stage stage = Stage::training;
  std::string signature;  ///< "Long[4, 64] cuda:0, Long[4, 64] cuda:0, with gradients".
  GraphedState state = GraphedState::warming_up;
  std::size_t eager_calls = 0;
  std::size_t replays = 0;
  std::size_t recaptures = 0;  ///< Captures after the first, because tensors were replaced or gradients differed.
  std::string reason;          ///< Why it stays eager, or why its latest capture was dropped.
  std::optional<BranchInfo> branches = {};
};

/// What a FullIteration knows and keeps.
struct FullIterationInfo {
  std::vector<IterationInfo> signatures = {};  ///< Training first; of a stage, most recently called first.
  std::size_t evictions = 0;                   ///< Signatures that lost their graph to others.
  std::size_t pool_bytes = 0;                  ///< Of the pool that all graphs share.
  std::size_t input_bytes = 0;  ///< Of tensors that graphs copy inputs into; what several share counts once.
  std::vector<std::string> unfollowed = {};  ///< As GraphedInfo::unfollowed.
  std::vector<std::string> compiled = {};    ///< What became of compiling its modules, from Python.

  [[nodiscard]] PIANOLA_API Report report() const;
};

}  // namespace pianola

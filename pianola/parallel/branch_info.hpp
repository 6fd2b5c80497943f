#pragma once
#include <pianola/core/export.hpp>
#include <pianola/core/report.hpp>

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

namespace pianola {

/// One reason why work could not run at once, summed over one operator.
struct BranchObstacle {
  std::string cause;             ///< "reuse of memory", "workspace" or "barrier".
  std::string op;                ///< The operator that had to wait: "aten::mm".
  std::size_t dependencies = 0;  ///< How many dependencies of that cause it has.
};

/// What CaptureOptions::branches came to. Times that are called modelled come from a model of the device (1.5 us a node
/// and 2.5 TB/s), not from a clock.
struct PIANOLA_API BranchInfo {
  int branches = 0;        ///< Lanes that were asked for, at most 8.
  bool automatic = false;  ///< Asked for by kAutoBranches.
  bool rebuilt = false;    ///< Replays run the rebuilt graph.
  std::string reason;      ///< Why replays run the graph as captured; empty if they do not.

  std::size_t nodes = 0;
  std::size_t units = 0;         ///< Pieces that are ordered as a whole: operations, or kernels of split ones.
  std::size_t edges_before = 0;  ///< Of the graph as captured.
  std::size_t edges_after = 0;   ///< Of the rebuilt graph, lanes included.
  std::size_t lanes = 0;         ///< That the schedule uses.
  std::size_t proved_pairs = 0;  ///< Pairs of units that touch the same bytes, one of them writing: all are ordered.

  std::size_t critical_nodes = 0;  ///< Nodes on the longest path.
  double modelled_serial_us = 0;
  double modelled_rebuilt_us = 0;
  double modelled_critical_us = 0;
  /// Modelled length of the longest path without an obstacle, in us.
  double without_reuse_us = 0;
  double without_workspaces_us = 0;
  double without_barriers_us = 0;

  /// Why a rebuilt graph was used without timing it; empty if both were timed, or nothing was rebuilt.
  std::string untimed;
  double serial_us = 0;   ///< A replay of the graph as captured, on the device; 0: not timed.
  double rebuilt_us = 0;  ///< The same of the rebuilt graph.
  double floor_us = 0;    ///< The longest path alone: its modelled share of serial_us; 0: not timed.

  std::size_t workspace_bytes = 0;  ///< Of the pool's workspaces for branches.
  std::size_t held_bytes = 0;       ///< Most bytes that were free but kept from reuse, at any time of the capture.
  std::chrono::microseconds plan_time{};     ///< Host time of planning and proof.
  std::chrono::microseconds rebuild_time{};  ///< Host time of clone, edges and executable.
  std::chrono::microseconds trial_time{};    ///< Host time of timing both graphs.

  std::vector<BranchObstacle> obstacles;  ///< The most frequent first.
  std::vector<std::string> warnings;      ///< What is right but may surprise, one sentence each.

  [[nodiscard]] Report report() const;
};

}  // namespace pianola

#pragma once
#include <pianola/parallel/dependencies.hpp>
#include <pianola/parallel/unit.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace pianola::parallel {

/// Most lanes that a graph is given: a device starts nodes of more chains no faster, and each costs the host at launch.
inline constexpr int kMostLanes = 8;

/// Which lane each unit runs on, and when, by the model. The units of a lane run one after the other.
struct Lanes {
  std::vector<std::uint32_t> lane_of;  ///< By unit.
  std::vector<double> start_us;        ///< By unit.
  std::size_t used = 0;                ///< Lanes are numbered from 0, the one with the critical path first.
  double makespan_us = 0;
};

/// List scheduling onto at most `lanes` lanes (1 to kMostLanes): of the units whose dependencies are done, the one with
/// the longest path to the end goes first, to the lane on which it can begin soonest. Waiting for a unit of another
/// lane costs 1 us more. Units that communicate have one lane more, of their own: how long they take depends on other
/// ranks, and nothing that does not wait for them should. The same input gives the same schedule.
/// @param dependencies  In any order, from < to.
Lanes schedule_lanes(std::span<const Unit> units, std::span<const Dependency> dependencies, int lanes);

}  // namespace pianola::parallel

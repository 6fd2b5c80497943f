#include <pianola/parallel/plan.hpp>

#include <pianola/parallel/dependency_graph.hpp>
#include <pianola/parallel/without_cause.hpp>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace pianola::parallel {
namespace {

struct Obstacle {
  Cause cause;
  const char* name;  // as in BranchObstacle
};
constexpr std::array kObstacles = {Obstacle{Cause::reuse, "reuse of memory"}, Obstacle{Cause::workspace, "workspace"},
                                   Obstacle{Cause::barrier, "barrier"}};

// The units by their start. Of two that start together one takes no time, and `dependencies` tell which is first.
std::vector<std::uint32_t> by_start(const Lanes& lanes, std::span<const Dependency> dependencies) {
  std::vector<std::uint32_t> order = DependencyGraph(dependencies, lanes.start_us.size()).order();
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t left, std::uint32_t right) {
    return lanes.start_us[left] < lanes.start_us[right];
  });
  return order;
}

// `dependencies`, and one from each unit to the next of its lane.
std::vector<Dependency> with_lanes(std::span<const Dependency> dependencies, const Lanes& lanes) {
  std::vector<Dependency> all(dependencies.begin(), dependencies.end());
  std::vector<std::optional<std::uint32_t>> last(lanes.used);
  for (const std::uint32_t unit : by_start(lanes, dependencies)) {
    std::optional<std::uint32_t>& before = last[lanes.lane_of[unit]];
    if (before) all.push_back({.from = *before, .to = unit, .cause = Cause::lane});
    before = unit;
  }
  return all;
}

std::vector<NodeEdge> node_edges(std::span<const Unit> units, std::span<const Dependency> dependencies) {
  std::vector<NodeEdge> edges;
  for (const Unit& unit : units) {
    for (std::size_t next = 1; next < unit.nodes.size(); ++next) {
      edges.push_back({.from = unit.nodes[next - 1], .to = unit.nodes[next]});
    }
  }
  for (const Dependency& dependency : dependencies) {
    edges.push_back({.from = units[dependency.from].nodes.back(), .to = units[dependency.to].nodes.front()});
  }
  return edges;
}

// One unit after the other, but what communicates: that runs beside the rest as it was captured, too.
double serial_us(std::span<const Unit> units, std::span<const Dependency> dependencies) {
  if (std::any_of(units.begin(), units.end(), [](const Unit& unit) { return unit.communicates; })) {
    return schedule_lanes(units, dependencies, 1).makespan_us;
  }
  double total = 0;
  for (const Unit& unit : units) total += unit.cost_us;
  return total;
}

// Counts, by cause and operator, the dependencies that keep units of it waiting.
std::vector<BranchObstacle> count_obstacles(std::span<const Unit> units, std::span<const Dependency> dependencies) {
  std::vector<BranchObstacle> obstacles;
  for (const Obstacle& obstacle : kObstacles) {
    std::map<std::string, std::size_t> counts;
    for (const Dependency& dependency : dependencies) {
      if (dependency.cause == obstacle.cause) ++counts[units[dependency.to].name];
    }
    for (const auto& [op, count] : counts) obstacles.push_back({obstacle.name, op, count});
  }
  std::stable_sort(obstacles.begin(), obstacles.end(), [](const BranchObstacle& left, const BranchObstacle& right) {
    return left.dependencies > right.dependencies;
  });
  return obstacles;
}

// See Note [What a cause costs]. Saves the search where the step has nothing of the kind.
double critical_us_without(Cause cause, const Plan& plan, std::span<const Dependency> needed) {
  const bool occurs = std::any_of(needed.begin(), needed.end(),
                                  [&](const Dependency& dependency) { return dependency.cause == cause; });
  if (!occurs) return plan.critical.us;
  return critical_path(plan.units, find_dependencies_without(cause, plan.units)).us;
}

}  // namespace

Plan make_plan(std::vector<Unit> units, int lanes) {
  Plan plan;
  plan.units = std::move(units);

  const std::size_t count = plan.units.size();
  const std::vector<Dependency> needed = transitive_reduction(find_dependencies(plan.units), count);
  plan.serial_us = serial_us(plan.units, needed);
  plan.critical = critical_path(plan.units, needed);
  plan.lanes = schedule_lanes(plan.units, needed, lanes);
  plan.dependencies = transitive_reduction(with_lanes(needed, plan.lanes), count);
  plan.edges = node_edges(plan.units, plan.dependencies);

  plan.without_reuse_us = critical_us_without(Cause::reuse, plan, needed);
  plan.without_workspaces_us = critical_us_without(Cause::workspace, plan, needed);
  plan.without_barriers_us = critical_us_without(Cause::barrier, plan, needed);
  plan.obstacles = count_obstacles(plan.units, needed);
  return plan;
}

void Plan::describe(BranchInfo& info) const {
  info.nodes = 0;
  for (const Unit& unit : units) info.nodes += unit.nodes.size();
  info.units = units.size();
  info.edges_after = edges.size();
  info.lanes = lanes.used;
  info.critical_nodes = 0;
  for (const std::uint32_t unit : critical.units) info.critical_nodes += units[unit].nodes.size();
  info.modelled_serial_us = serial_us;
  info.modelled_rebuilt_us = lanes.makespan_us;
  info.modelled_critical_us = critical.us;
  info.without_reuse_us = without_reuse_us;
  info.without_workspaces_us = without_workspaces_us;
  info.without_barriers_us = without_barriers_us;
  info.obstacles = obstacles;
}

}  // namespace pianola::parallel

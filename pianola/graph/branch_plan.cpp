#include <pianola/graph/branch_plan.hpp>

#include <pianola/core/error.hpp>
#include <pianola/core/number_check.hpp>
#include <pianola/graph/add_time.hpp>
#include <pianola/parallel/lanes.hpp>
#include <pianola/parallel/proof.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace pianola::graph {
namespace {

// The tables of the proof take some 200 MB for so many.
constexpr std::size_t kMostNodes = 30'000;
// More gain little for the steps of most models.
constexpr int kLanesOfAuto = 4;

std::size_t count_nodes(const std::vector<parallel::Unit>& units) {
  std::size_t nodes = 0;
  for (const parallel::Unit& unit : units) nodes += unit.nodes.size();
  return nodes;
}

// What the capture of a step that communicates leaves side by side, and has to have in the order of the units; empty:
// nothing. Two communicators that it leaves so are not put in an order either: other ranks may have left them in another.
std::string find_race(const parallel::StepUnits& step) {
  if (step.captured.empty()) return "";
  return parallel::prove(step.units, count_nodes(step.units), step.captured).failure;
}

}  // namespace

void check_branches(int branches, const ParallelOptions& parallel) {
  if (branches != kAutoBranches) check_at_least(0, "branches", branches);
  check_at_least(0, "parallel.workspaces", parallel.workspaces);
  check_at_least(0, "parallel.reuse_delay", parallel.reuse_delay);
}

BranchInfo requested_branches(const CaptureOptions& options) {
  BranchInfo info;
  info.automatic = options.branches == kAutoBranches;
  if (info.automatic) {
    info.branches = kLanesOfAuto;
    return info;
  }
  info.branches = std::min(options.branches, parallel::kMostLanes);
  if (options.branches > parallel::kMostLanes) {
    info.warnings.push_back(fmt::format(
        "branches = {} was reduced to {}: more lanes are no faster, and each lane costs host time at every launch",
        options.branches, parallel::kMostLanes));
  }
  return info;
}

std::optional<parallel::Plan> plan_branches(parallel::StepUnits step, BranchInfo& info) {
  const AddTime timed(info.plan_time);
  if (!step.refusal.empty()) {
    info.reason = std::move(step.refusal);
    return std::nullopt;
  }
  if (const std::size_t nodes = count_nodes(step.units); nodes > kMostNodes) {
    info.reason =
        fmt::format("the graph has {} nodes; a proof handles at most {}, because its tables grow with the square",
                    nodes, kMostNodes);
    return std::nullopt;
  }
  if (const std::string race = find_race(step); !race.empty()) {
    info.reason = "the capture does not order a collective and what it has to be in order with: " + race;
    return std::nullopt;
  }
  parallel::Plan plan = parallel::make_plan(std::move(step.units), info.branches);
  plan.describe(info);
  if (plan.lanes.makespan_us >= (1 - kLeastGain) * plan.serial_us) {
    info.reason = "the step is a chain: too little of it is independent to gain from a second lane";
    return std::nullopt;
  }
  if (const auto& tamper = tamper_with_planned_edges()) tamper(plan.edges);
  return plan;
}

bool prove_branches(const parallel::Plan& plan, std::size_t nodes, std::span<const parallel::NodeEdge> edges,
                    BranchInfo& info) {
  const AddTime timed(info.plan_time);
  const parallel::Proof proof = parallel::prove(plan.units, nodes, edges);
  info.proved_pairs = proof.holds() ? proof.pairs : 0;
  info.edges_after = edges.size();
  if (!proof.holds()) info.reason = "the rebuilt graph could not be proved right: " + proof.failure;
  return proof.holds();
}

std::function<void(std::vector<parallel::NodeEdge>&)>& tamper_with_planned_edges() {
  thread_local std::function<void(std::vector<parallel::NodeEdge>&)> tamper;
  return tamper;
}

}  // namespace pianola::graph

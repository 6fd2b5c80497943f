#include "benchmark.hpp"
#include "cuda/branch_steps.hpp"
#include "cuda/branch_twins.hpp"
#include "cuda/device.hpp"
#include "cuda/planning_time.hpp"
#include "models/mlp.hpp"

#include <pianola/graph/graph.hpp>

#include <c10/cuda/CUDACachingAllocator.h>

#include <fmt/format.h>

#include <iterator>
#include <memory>
#include <utility>

namespace pianola::bench::cuda {
namespace {

constexpr const char* kPlain = "plain";
constexpr const char* kNoWarmup = "plain, no warm-up";

struct Contending {
  const char* name;
  CaptureOptions options;
};

// One eager run each, without which a rebuilt graph is not tried; and the same without, to know what that run takes.
std::vector<Contending> ways() {
  return {{kPlain, {.warmup = 1}},
          {kInBranches, {.warmup = 1, .branches = kBranches}},
          {"branches = 4, no self-check", {.warmup = 1, .branches = kBranches, .parallel = {.self_check = false}}},
          {kNoWarmup, {.warmup = 0}}};
}

// BranchCaptures of one step, again and again; what one leaves is dropped before the next, so that each begins with no memory to
// reuse.
struct BranchCaptures {
  BranchCaptures(const BranchWorkload& workload, CaptureOptions with)
      : step(workload.make()), graph(kDevice), options(std::move(with)) {
    for (int run = 0; run < 3; ++run) step.run();
  }
  void capture() {
    graph.capture([this] { step.run(); }, options);
  }
  void drop() {
    graph.reset();
    c10::cuda::CUDACachingAllocator::emptyCache();
    synchronize();
  }

  WholeStep step;
  Graph graph;
  CaptureOptions options;
};

// What the capture says of itself, when its replays have computed what eager does.
GraphInfo checked_info(const BranchWorkload& workload, const Contending& way) {
  WholeStep eager = workload.make();
  const std::vector<at::Tensor> expected = seeded_steps([&] { eager.run(); }, eager);
  WholeStep step = workload.make();
  Graph graph(kDevice);
  graph.capture([&] { step.run(); }, way.options);
  check_equal(way.name, seeded_steps([&] { graph.replay(); }, step), expected);
  return graph.info();
}

Requirement at_most_twice(const Case& measured) {
  constexpr double kAbove = 10'000;  // us
  const double capture = measured.median_of(kNoWarmup);
  const double limit = 2 * capture + kAbove;
  const double median = measured.median_of(kInBranches) - (measured.median_of(kPlain) - capture);
  return {.text = fmt::format("{}, less the warm-up: at most twice '{}' and 10 ms", kInBranches, kNoWarmup),
          .measured = median,
          .limit = limit,
          .met = median <= limit};
}

std::string parts(const BranchInfo& found) {
  return fmt::format(
      "one capture in branches: {} us of planning and proof, {} us of rebuilding, {} us of timing both graphs",
      found.plan_time.count(), found.rebuild_time.count(), found.trial_time.count());
}

Case capture_time(const BranchWorkload& workload, const GraphInfo& branched, const Settings& settings) {
  std::vector<std::unique_ptr<BranchCaptures>> captures;
  std::vector<Contender> contenders;
  for (Contending& way : ways()) {
    BranchCaptures* one =
        captures.emplace_back(std::make_unique<BranchCaptures>(workload, std::move(way.options))).get();
    contenders.push_back({way.name, [one] { one->capture(); }, [one] { one->drop(); }});
  }
  const Plan plan = settings.plan(1);
  Case result{.name = "capture: " + workload.name,
              .measure = "host time of warm-up (one run), recording, planning, instantiation, trial",
              .unit = "us",
              .baseline = kPlain,
              .iterations = plan.iterations,
              .series = interleave(host_timer(synchronize), contenders, plan)};
  result.requirements = {at_most_twice(result)};
  result.notes = branch_notes(branched.branches);
  if (branched.branches) result.notes.push_back(parts(*branched.branches));
  return result;
}

Case memory(const BranchWorkload& workload, const GraphInfo& plain, const GraphInfo& branched) {
  const BranchInfo found = branched.branches.value_or(BranchInfo{});
  const auto bytes = [](std::size_t count) { return std::vector<double>{static_cast<double>(count)}; };
  return {.name = "memory: " + workload.name,
          .measure = "device memory of one graph",
          .unit = "bytes",
          .baseline = "",
          .iterations = 1,
          .series = {{"pool, plain", bytes(plain.pool_bytes)},
                     {"pool, branches = 4", bytes(branched.pool_bytes)},
                     {"workspaces", bytes(found.workspace_bytes)},
                     {"kept from reuse at most", bytes(found.held_bytes)}}};
}

std::vector<BranchWorkload> captured_workloads() {
  return {{.name = "MLP 16 x 64, batch 32, Adam", .make = mlp_steps({}, Update::adam)},
          {.name = "transformer 8 x 256, batch 2 x 64, packed q k v, Adam",
           .make = transformer_steps({}, /*batch=*/2, /*length=*/64, Update::adam)}};
}

// Of which only the memory is of interest: inference uses memory again most, and wide layers need most.
std::vector<BranchWorkload> more_workloads() {
  return {{.name = "6 inception blocks, 256 x 14 x 14, batch 8, inference", .make = inception_steps({}, /*batch=*/8)},
          {.name = "MLP 16 x 2048, batch 256, SGD", .make = mlp_steps({.width = 2048, .batch = 256}, Update::sgd)}};
}

}  // namespace

std::vector<Case> branches_capture(const Settings& settings) {
  const OnPoolStream stream;
  const std::vector<Contending> contending = ways();
  std::vector<Case> cases;
  std::vector<Case> memories;
  for (const BranchWorkload& workload : captured_workloads()) {
    const GraphInfo plain = checked_info(workload, contending[0]);
    const GraphInfo branched = checked_info(workload, contending[1]);
    cases.push_back(capture_time(workload, branched, settings));
    memories.push_back(memory(workload, plain, branched));
  }
  for (const BranchWorkload& workload : more_workloads()) {
    memories.push_back(memory(workload, checked_info(workload, contending[0]), checked_info(workload, contending[1])));
  }
  std::move(memories.begin(), memories.end(), std::back_inserter(cases));
  cases.push_back(planning_time(settings));
  return cases;
}

}  // namespace pianola::bench::cuda

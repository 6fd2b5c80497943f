#include "cuda/planning_time.hpp"

#include "cuda/branch_twins.hpp"
#include "cuda/device.hpp"
#include "models/mlp.hpp"
#include "models/model.hpp"

#include <ATen/ops/mul.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <chrono>

namespace pianola::bench::cuda {
namespace {

constexpr std::int64_t kChains = 8;
constexpr int kOpsPerChain = 1250;
constexpr double kLimitMs = 2000;

// Chains of small operations that have nothing to do with each other until the end, one operation of each in turn.
class Chains {
 public:
  void run() {
    std::vector<at::Tensor> chains = starts_.unbind(0);
    for (int i = 0; i < kOpsPerChain; ++i) {
      for (at::Tensor& x : chains) x = at::mul(x, factor_);
    }
    result_ = at::stack(chains).sum(0);
  }

  [[nodiscard]] const at::Tensor& result() const { return result_; }

 private:
  at::Tensor starts_ = fixed_batch({kChains, 32}, kDevice);
  at::Tensor factor_ = fixed_batch({32}, kDevice).sigmoid();  // below 1: nothing grows beyond bounds
  at::Tensor result_;
};

double milliseconds(std::chrono::microseconds time) { return static_cast<double>(time.count()) / 1000; }

Requirement largest_within_limit(const Series& series) {
  const double largest = *std::max_element(series.samples.begin(), series.samples.end());
  return {
      .text = series.contender + ": at most 2 s", .measured = largest, .limit = kLimitMs, .met = largest <= kLimitMs};
}

}  // namespace

Case planning_time(const Settings& settings) {
  Chains eager;
  eager.run();
  Series planning{.contender = "planning and proof", .samples = {}};
  Series rebuilding{.contender = "rebuilding", .samples = {}};
  Series both{.contender = "both", .samples = {}};
  Series trial{.contender = "timing both graphs", .samples = {}};
  std::vector<std::string> notes;
  for (int sample = 0; sample < settings.some(5); ++sample) {
    Chains chains;
    Graph graph(kDevice);
    graph.capture([&] { chains.run(); }, {.warmup = 0, .branches = kBranches});
    graph.replay();
    check_equal("the chains in branches", {chains.result()}, {eager.result()});
    const BranchInfo found = graph.info().branches.value();
    planning.samples.push_back(milliseconds(found.plan_time));
    rebuilding.samples.push_back(milliseconds(found.rebuild_time));
    both.samples.push_back(milliseconds(found.plan_time + found.rebuild_time));
    trial.samples.push_back(milliseconds(found.trial_time));
    notes = branch_notes(graph.info().branches);
  }
  Case result{.name = "8 chains of 1250 operations, 10,000 nodes",
              .measure = "host time at the end of a capture in branches",
              .unit = "ms",
              .baseline = "",
              .iterations = 1,
              .series = {planning, rebuilding, both, trial}};
  result.requirements = {largest_within_limit(both)};
  result.notes = std::move(notes);
  return result;
}

}  // namespace pianola::bench::cuda

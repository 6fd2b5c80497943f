#include "benchmark.hpp"
#include "cuda/device.hpp"
#include "cuda/iteration_twins.hpp"
#include "models/transformer.hpp"

#include <fmt/format.h>

#include <iterator>
#include <utility>

namespace pianola::bench::cuda {
namespace {

constexpr int kMicrobatches = 4;

Iteration mlp(Checks checks) {
  return {linear_chain({}, kDevice), fixed_batch({kMicrobatches, 32, ChainShape{}.width}, kDevice), checks};
}

Iteration former(Checks checks) {
  const TransformerShape shape;
  return {transformer(shape, kDevice), fixed_batch({kMicrobatches, 2, 64, shape.width}, kDevice), checks};
}

constexpr const char* kMlp = "MLP 16 x 64, 4 microbatches of 32";
constexpr const char* kFormer = "transformer 8 x 256, 4 microbatches of 2 x 64";

// The same captured iteration with and without the check, and with what training calls after it.
Case cost_of_checks(const Settings& settings, const char* name, Iteration (*make)(Checks checks)) {
  struct Checked {
    Checked(Iteration (*make)(Checks checks), Checks checks) : iteration(make(checks)) {
      graph.capture([this] { iteration.run(); });
    }
    void step() {
      graph.replay();
      iteration.poll();
    }
    Iteration iteration;
    Graph graph{kDevice};
  };
  Checked without(make, Checks::nowhere), loss(make, Checks::loss), gradients(make, Checks::loss_and_gradients);
  const Contender contenders[] = {{"without", [&] { without.step(); }},
                                  {"of the loss", [&] { loss.step(); }},
                                  {"of the loss and each gradient", [&] { gradients.step(); }}};
  Plan plan = settings.plan(50);
  plan.turns = settings.quick ? 1 : 5;
  Case result{.name = fmt::format("{}: deferred check for NaN and infinity", name),
              .measure = "time per iteration, back to back",
              .unit = "us",
              .baseline = "without",
              .iterations = plan.iterations,
              .series = interleave(event_timer(), contenders, plan)};
  result.requirements = {at_most_ratio(result, "of the loss", 1.01),
                         at_most_ratio(result, "of the loss and each gradient", 1.01)};
  return result;
}

}  // namespace

std::vector<Case> full_iteration(const Settings& settings) {
  const OnPoolStream stream;
  const auto with = [](Iteration (*make)(Checks checks)) { return [=] { return make(Checks::loss); }; };
  const IterationWorkload workloads[] = {
      {.name = fmt::format("{}, products in TF32", kMlp), .make = with(&mlp), .branches_speedup = 1.6},
      {.name = fmt::format("{}, products in TF32", kFormer), .make = with(&former), .branches_speedup = 1.2},
  };
  std::vector<Case> cases, host;
  for (const IterationWorkload& workload : workloads) {
    IterationTwins twins(workload);
    cases.push_back(twins.device_time(settings));
    host.push_back(twins.host_time(settings));
    host.push_back(twins.first_call(settings));
  }
  std::move(host.begin(), host.end(), std::back_inserter(cases));
  return cases;
}

std::vector<Case> finite_watch(const Settings& settings) {
  const OnPoolStream stream;
  return {cost_of_checks(settings, kMlp, &mlp), cost_of_checks(settings, kFormer, &former)};
}

}  // namespace pianola::bench::cuda

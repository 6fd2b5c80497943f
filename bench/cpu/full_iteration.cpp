#include "benchmark.hpp"
#include "cpu/one_thread.hpp"
#include "models/iteration.hpp"
#include "models/mlp.hpp"

#include <pianola/training/full_iteration.hpp>

namespace pianola::bench::cpu {

std::vector<Case> full_iteration(const Settings& settings) {
  const OneThread one_thread;
  const at::Tensor data = fixed_batch({4, MlpShape{}.batch, ChainShape{}.width}, c10::kCPU);
  Iteration eager(linear_chain({}, c10::kCPU), data), graphed(linear_chain({}, c10::kCPU), data);
  FullIteration iteration([&](const std::vector<c10::IValue>& one) -> c10::IValue { return graphed.run(one); },
                          {.warmup = 1});
  for (int i = 0; i < 5; ++i) {
    eager.run();
    (void)iteration(graphed.microbatches());
    check_equal("a full iteration", graphed.state(), eager.state());
  }
  const Contender contenders[] = {{"eager C++", [&] { eager.run(); }},
                                  {"FullIteration", [&] { (void)iteration(graphed.microbatches()); }}};
  const Plan plan = settings.plan(iterations_for(50, contenders[0]));
  Case result{.name = "MLP 16 x 64, 4 microbatches of 32, AdamW, scaler, clipping, NaN check, one thread",
              .measure = "time per iteration",
              .unit = "us",
              .baseline = "eager C++",
              .iterations = plan.iterations,
              .series = interleave(host_timer(), contenders, plan)};
  result.requirements = {at_least_speedup(result, "FullIteration", 1.5)};
  return {std::move(result)};
}

}  // namespace pianola::bench::cpu

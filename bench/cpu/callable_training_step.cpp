#include "benchmark.hpp"
#include "cpu/one_thread.hpp"
#include "models/mlp.hpp"
#include "models/training.hpp"

namespace pianola::bench::cpu {

std::vector<Case> callable_training_step(const Settings& settings) {
  const OneThread one_thread;
  const at::Tensor both = fixed_batch({2, MlpShape{}.batch, ChainShape{}.width}, c10::kCPU);
  Training eager(linear_chain({}, c10::kCPU), both[0], both[1], Graphed::nothing);
  Training whole(linear_chain({}, c10::kCPU), both[0], both[1], Graphed::whole);
  for (int step = 0; step < 5; ++step) {
    eager.step();
    whole.step();
    check_equal("training with a graphed callable", whole.state(), eager.state());
  }
  const Contender contenders[] = {{"eager C++", [&] { eager.step(); }},
                                  {"make_graphed_callable", [&] { whole.step(); }}};
  const Plan plan = settings.plan(iterations_for(50, contenders[0]));
  Case result{.name = "MLP 16 x 64, batch 32, Adam outside, one thread",
              .measure = "time per step",
              .unit = "us",
              .baseline = "eager C++",
              .iterations = plan.iterations,
              .series = interleave(host_timer(), contenders, plan)};
  result.requirements = {at_most_ratio(result, "make_graphed_callable", 1)};
  return {std::move(result)};
}

}  // namespace pianola::bench::cpu

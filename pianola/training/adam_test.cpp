#include <pianola/training/adam.hpp>

#include <pianola/training/learning_rate_schedule.hpp>
#include <pianola/training/testing/optimizer_fixture.hpp>

#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <memory>

namespace pianola::adam_test {
namespace {

using ::testing::AllOf;
using testing::expect_same;
using ::testing::HasSubstr;
using testing::Problem;
using testing::refusal;
using testing::same;

const AdamOptions kAdamForms[] = {{.lr = 0.1},
                                  {.lr = 0.1, .beta1 = 0.8, .eps = 1e-3, .weight_decay = 0.1, .amsgrad = true},
                                  {.lr = 0.1, .weight_decay = 0.1, .maximize = true}};
const AdamWOptions kAdamWForms[] = {{.lr = 0.1},
                                    {.lr = 0.1, .weight_decay = 0.2, .amsgrad = true, .maximize = true},
                                    {.lr = 0.1, .weight_decay = 0.2, .scheduled_weight_decay = true}};

class AdamTest : public testing::OptimizerTest {
 protected:
  static at::Tensor named(const Optimizer& optimizer, const std::string& name) {
    for (const NamedTensor& state : optimizer.state()) {
      if (state.name == name) return state.tensor;
    }
    ADD_FAILURE() << "no state " << name;
    return {};
  }
};
PIANOLA_ON_EVERY_DEVICE(AdamTest);

TEST_P(AdamTest, EqualsTheFusedOperation) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    Problem one(device(), dtype), other(device(), dtype);
    Adam adam(one.parameters, {.lr = 0.1, .weight_decay = 0.1});
    std::vector<at::Tensor> averages, squares, steps;
    for (const at::Tensor& parameter : other.parameters) {
      averages.push_back(at::zeros_like(parameter.detach()));
      squares.push_back(at::zeros_like(parameter.detach()));
      steps.push_back(at::zeros({}, device()));
    }
    const at::Tensor rate = at::full({}, 0.1, device());
    for (int step = 1; step < 5; ++step) {
      adam.zero_grad();
      one.backward();
      adam.step();
      const std::vector<at::Tensor> gradients = adam.gradients();
      const at::NoGradGuard no_grad;
      for (const at::Tensor& count : steps) count.fill_(step);
      at::_fused_adam_(other.parameters, gradients, averages, squares, {}, steps, rate, 0.9, 0.999, 0.1, 1e-8, false,
                       false);
      for (std::size_t i = 0; i < steps.size(); ++i) {
        const std::string name = "state." + std::to_string(i);
        EXPECT_TRUE(same(one.parameters[i], other.parameters[i]));
        EXPECT_TRUE(same(named(adam, name + ".exp_avg"), averages[i]));
        EXPECT_TRUE(same(named(adam, name + ".exp_avg_sq"), squares[i]));
        EXPECT_TRUE(same(named(adam, name + ".step"), steps[i]));
      }
    }
  }
}

TEST_P(AdamTest, CapturedEqualsEager) {
  for (const AdamOptions& options : kAdamForms) {
    expect_replays_equal_eager(
        [&](const std::vector<at::Tensor>& parameters) { return std::make_unique<Adam>(parameters, options); });
  }
  for (const AdamWOptions& options : kAdamWForms) {
    expect_replays_equal_eager(
        [&](const std::vector<at::Tensor>& parameters) { return std::make_unique<AdamW>(parameters, options); });
  }
}

TEST_P(AdamTest, LeavesEverythingWhereAGradientIsNotFinite) {
  for (const AdamWOptions& options : kAdamWForms) {
    Problem one(device()), other(device());
    AdamW tested(one.parameters, options), reference(other.parameters, options);
    for (const float found_inf : {1.0F, 0.0F, 1.0F, 0.0F}) {
      for (const auto& [problem, adam] : {std::pair(&one, &tested), std::pair(&other, &reference)}) {
        adam->zero_grad();
        problem->backward();
      }
      const auto before = testing::clone_all(all_of(tested));
      tested.step({.found_inf = flag(found_inf)});
      if (found_inf == 1) {
        expect_same(all_of(tested), before);
      } else {
        reference.step();
        expect_same(all_of(tested), all_of(reference));
      }
    }
  }
}

TEST_P(AdamTest, CountsNoStepOfAParameterWithoutAGradient) {
  Problem problem(device());
  AdamW adam(problem.parameters);
  for (int step = 0; step < 3; ++step) {
    adam.zero_grad();
    problem.backward(/*without=*/step == 1 ? 2 : -1);
    adam.step();
  }
  EXPECT_EQ(named(adam, "state.1.step").item<float>(), 3);
  EXPECT_EQ(named(adam, "state.2.step").item<float>(), 2);
}

TEST_P(AdamTest, StepsGroupsOfSeveralDtypes) {
  const Problem floats(device()), halves(device(), at::kBFloat16);
  const Problem floats_alone(device()), halves_alone(device(), at::kBFloat16);
  std::vector<at::Tensor> mixed;
  for (std::size_t i = 0; i < 4; ++i) mixed.insert(mixed.end(), {floats.parameters[i], halves.parameters[i]});
  AdamW together(mixed), one(floats_alone.parameters), other(halves_alone.parameters);
  for (int step = 0; step < 3; ++step) {
    for (const Problem* problem : {&floats, &halves, &floats_alone, &halves_alone}) problem->backward();
    together.step();
    one.step();
    other.step();
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_TRUE(same(floats.parameters[i], floats_alone.parameters[i]));
      EXPECT_TRUE(same(halves.parameters[i], halves_alone.parameters[i]));
    }
  }
}

TEST_P(AdamTest, DecaysWeightsByASchedule) {
  Problem one(device()), other(device());
  AdamW scheduled(one.parameters, {.lr = 0.1, .weight_decay = 0.5, .scheduled_weight_decay = true});
  AdamW plain(other.parameters, {.lr = 0.1, .weight_decay = 0});
  LearningRateSchedule schedule({scheduled.weight_decay()}, LearningRate::linear(4, 1, 0));
  const auto step = [&] {
    scheduled.zero_grad();
    one.backward();
    scheduled.step();
  };
  Graph graph(device());
  graph.capture(step);
  for (int i = 0; i < 4; ++i) {
    graph.replay();
    plain.zero_grad();
    const at::Tensor factor = 1 - plain.learning_rate() * at::full({}, 0.5 * (1 - i / 4.0), device());
    other.backward();
    {
      const at::NoGradGuard no_grad;
      for (const at::Tensor& parameter : other.parameters) parameter.mul_(factor);
    }
    plain.step();
    for (std::size_t p = 0; p < 4; ++p) EXPECT_TRUE(same(one.parameters[p], other.parameters[p])) << i;
    schedule.step();
  }
}

TEST_P(AdamTest, NamesOptionsOutOfRange) {
  const auto make = [](const AdamOptions& options) { Adam(std::vector<at::Tensor>{randn({2})}, options); };
  EXPECT_THAT(refusal<UsageError>("an eps just below 0", [&] { make({.eps = -1e-9}); }),
              HasSubstr("eps must be finite and 0 or more, got -1e-09"));
  EXPECT_THAT(refusal<UsageError>("a beta of 1", [&] { make({.beta2 = 1}); }),
              HasSubstr("beta2 must be at least 0 and below 1, got 1"));
  EXPECT_THAT(refusal<UsageError>("a negative eps", [&] { make({.eps = -1}); }), HasSubstr("eps must be finite"));
  const AdamW adam(std::vector<at::Tensor>{randn({2})});
  EXPECT_THAT(refusal<UsageError>("no scheduled weight decay", [&] { (void)adam.weight_decay(); }),
              AllOf(HasSubstr("a number of the host"), HasSubstr("scheduled_weight_decay")));
}

}  // namespace
}  // namespace pianola::adam_test

#include <pianola/training/grad_scaler.hpp>

#include <pianola/graph/testing/device_test.hpp>
#include <pianola/training/adam.hpp>
#include <pianola/training/clip_grad.hpp>
#include <pianola/training/testing/plain_sgd.hpp>

#include <ATen/core/Dict.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>

#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

namespace pianola::grad_scaler_test {
namespace {

using ::testing::AllOf;
using testing::expect_same;
using ::testing::HasSubstr;
using testing::NamedTensors;
using testing::PlainSgd;
using testing::refusal;
using testing::same;
using testing::SmallTraining;

constexpr double kInf = std::numeric_limits<double>::infinity();

static_assert(std::is_nothrow_move_constructible_v<GradScaler> && !std::is_copy_constructible_v<GradScaler>);

enum class Way { fused, unscaled, clipped };

// A training with a scaler that grows every other step.
class Scaled : public SmallTraining {
 public:
  explicit Scaled(c10::Device device, Way way = Way::fused)
      : SmallTraining(device), scaler(device, {.init_scale = 1024, .growth_interval = 2}), way_(way) {}

  void step() {
    optimizer.zero_grad();
    backward(scaler.scale(forward()));
    if (way_ != Way::fused) scaler.unscale_(optimizer);
    if (way_ == Way::clipped) clip_grad_norm_(optimizer, 0.1);
    scaler.step(optimizer);
    scaler.update();
  }

  [[nodiscard]] NamedTensors all() const {
    NamedTensors tensors = everything();
    for (const NamedTensor& named : scaler.state()) tensors.emplace_back(named.name, named.tensor);
    return tensors;
  }

  GradScaler scaler;

 private:
  Way way_;
};

class GradScalerTest : public testing::DeviceTest {
 protected:
  static at::Tensor number(double value) { return at::full({}, value, device()); }
  static at::Tensor count(std::int64_t value) {
    return at::full({}, value, at::TensorOptions(at::kLong).device(device()));
  }
};
PIANOLA_ON_EVERY_DEVICE(GradScalerTest);

TEST_P(GradScalerTest, GrowsAfterGoodStepsAndShrinksAfterABadOne) {
  Scaled training(device());
  const std::vector<double> factors = {1, 1, kInf, 1, 1, kInf, kInf, 1};
  const std::vector<double> scales = {1024, 2048, 1024, 1024, 2048, 1024, 512, 512};
  for (std::size_t i = 0; i < factors.size(); ++i) {
    training.feed(static_cast<int>(i), factors[i]);
    const std::vector<at::Tensor> before = training.copies();
    training.step();
    EXPECT_TRUE(same(training.scaler.current_scale(), number(scales[i]))) << "step " << i;
    EXPECT_EQ(same(training.parameters[0], before[0]), factors[i] == kInf) << "step " << i;
    EXPECT_EQ(same(training.parameters[1], before[1]), factors[i] == kInf) << "step " << i;
  }
  EXPECT_TRUE(same(training.scaler.skipped_steps(), count(3)));
  EXPECT_TRUE(same(training.scaler.growth_tracker(), at::ones({}, at::TensorOptions(at::kInt).device(device()))));
}

TEST_P(GradScalerTest, AStepWithNaNLeavesTheParametersAsTheyWere) {
  Scaled training(device());
  for (int step = 0; step < 10; ++step) {
    training.feed(step, step == 6 ? std::numeric_limits<double>::quiet_NaN() : 1);
    const std::vector<at::Tensor> before = training.copies();
    training.step();
    EXPECT_EQ(same(training.parameters[0], before[0]), step == 6) << "step " << step;
  }
  EXPECT_TRUE(same(training.scaler.skipped_steps(), count(1)));
}

TEST_P(GradScalerTest, EqualsEagerWhenTheWholeStepIsCaptured) {
  for (const Way way : {Way::fused, Way::unscaled, Way::clipped}) {
    Scaled eager(device(), way), graphed(device(), way);
    Graph graph(device());
    graph.capture([&] { graphed.step(); });
    expect_same({graphed.all()[0], graphed.all()[1], graphed.all()[3], graphed.all()[4], graphed.all()[5]},
                {eager.all()[0], eager.all()[1], eager.all()[3], eager.all()[4], eager.all()[5]},
                "after the capture, which counts for nothing");
    for (int step = 0; step < 9; ++step) {
      const double factor = step == 3 || step == 4 ? kInf : 1;
      eager.feed(step, factor);
      graphed.feed(step, factor);
      eager.step();
      graph.replay();
      expect_same({graphed.all()[0], graphed.all()[1], graphed.all()[3], graphed.all()[4], graphed.all()[5]},
                  {eager.all()[0], eager.all()[1], eager.all()[3], eager.all()[4], eager.all()[5]},
                  "in step " + std::to_string(step));
    }
    EXPECT_TRUE(same(graphed.scaler.skipped_steps(), count(2)));
    eager.step();  // the host's notes are as before the capture
  }
}

TEST_P(GradScalerTest, UnscalesToTheGradientsOfTheLossItself) {
  Scaled scaled(device());
  SmallTraining plain(device());
  plain.backward(plain.forward());
  scaled.backward(scaled.scaler.scale(scaled.forward()));
  scaled.scaler.unscale_(scaled.optimizer);
  EXPECT_TRUE(same(scaled.parameters[0].grad(), plain.parameters[0].grad()));  // 1024 is a power of two
  EXPECT_TRUE(same(scaled.scaler.found_inf(scaled.optimizer), number(0)));
}

TEST_P(GradScalerTest, EachOptimizerSkipsForItselfAndTheScaleShrinksForAll) {
  SmallTraining good(device()), bad(device());
  GradScaler scaler(device(), {.init_scale = 64});
  bad.feed(0, kInf);
  for (SmallTraining* training : {&good, &bad}) {
    training->backward(scaler.scale(training->forward()));
    scaler.unscale_(training->optimizer);
  }
  const std::vector<at::Tensor> good_before = good.copies(), bad_before = bad.copies();
  scaler.step(good.optimizer);
  scaler.step(bad.optimizer);
  EXPECT_TRUE(same(scaler.found_inf(good.optimizer), number(0)));
  EXPECT_TRUE(same(scaler.found_inf(bad.optimizer), number(1)));
  scaler.update();
  EXPECT_FALSE(same(good.parameters[0], good_before[0]));
  EXPECT_TRUE(same(bad.parameters[0], bad_before[0]));
  EXPECT_TRUE(same(scaler.current_scale(), number(32)));
  EXPECT_TRUE(same(scaler.skipped_steps(), count(1)));
}

TEST_P(GradScalerTest, CountsAStepThatBothOptimizersSkippedOnce) {
  SmallTraining one(device()), other(device());
  GradScaler scaler(device());
  for (SmallTraining* training : {&one, &other}) {
    training->feed(0, kInf);
    training->backward(scaler.scale(training->forward()));
    scaler.step(training->optimizer);
  }
  scaler.update();
  EXPECT_TRUE(same(scaler.skipped_steps(), count(1)));
}

TEST_P(GradScalerTest, SkipsStepsOfAdamAndItsCounters) {
  SmallTraining training(device());
  Adam adam(training.parameters);
  GradScaler scaler(device());
  for (const double factor : {1.0, kInf, 1.0}) {
    training.feed(0, factor);
    adam.zero_grad();
    training.backward(scaler.scale(training.forward()));
    scaler.step(adam);
    scaler.update();
  }
  EXPECT_TRUE(same(adam.state().front().tensor, number(2))) << adam.state().front().name;
}

TEST_P(GradScalerTest, DoesNothingWhereItIsNotEnabled) {
  SmallTraining training(device()), plain(device());
  GradScaler scaler(device(), {.enabled = false});
  const at::Tensor loss = training.forward();
  EXPECT_TRUE(scaler.scale(loss).is_same(loss));
  training.backward(loss);
  scaler.unscale_(training.optimizer);
  scaler.step(training.optimizer);
  scaler.update();
  scaler.update();
  plain.backward(plain.forward());
  plain.optimizer.step();
  expect_same(training.everything(), plain.everything());
  EXPECT_TRUE(scaler.state_dict().toGenericDict().empty());
  scaler.load_state_dict(scaler.state_dict());
}

TEST_P(GradScalerTest, LoadsItsStateInPlaceSoThatAGraphGoesOn) {
  Scaled first(device()), second(device());
  Graph graph(device());
  graph.capture([&] { second.step(); });
  for (int step = 0; step < 3; ++step) first.step();
  second.scaler.load_state_dict(first.scaler.state_dict());
  EXPECT_TRUE(same(second.scaler.current_scale(), number(2048)));
  graph.replay();
  EXPECT_TRUE(same(second.scaler.current_scale(), number(4096))) << "the tracker was loaded too";
}

TEST_P(GradScalerTest, HasTheStateDictOfTorch) {
  GradScaler scaler(device(), {.init_scale = 8, .growth_factor = 3, .backoff_factor = 0.25, .growth_interval = 7});
  const c10::impl::GenericDict state = scaler.state_dict().toGenericDict();
  EXPECT_EQ(state.size(), 5);
  EXPECT_EQ(state.at("scale").toDouble(), 8);
  EXPECT_EQ(state.at("growth_factor").toDouble(), 3);
  EXPECT_EQ(state.at("backoff_factor").toDouble(), 0.25);
  EXPECT_EQ(state.at("growth_interval").toInt(), 7);
  EXPECT_EQ(state.at("_growth_tracker").toInt(), 0);
}

TEST_P(GradScalerTest, SetsTheScale) {
  Scaled training(device());
  training.scaler.update(16);
  EXPECT_TRUE(same(training.scaler.current_scale(), number(16)));
  training.step();
  training.scaler.update(at::full({1}, 4.0, device()));
  EXPECT_TRUE(same(training.scaler.current_scale(), number(4)));
  training.step();
}

// What is wrong, and what is said of it.
class GradScalerRefusalTest : public GradScalerTest {};
PIANOLA_ON_EVERY_DEVICE(GradScalerRefusalTest);

TEST_P(GradScalerRefusalTest, OptionsOutOfRange) {
  const auto make = [](const GradScalerOptions& options) { return [=] { (void)GradScaler(device(), options); }; };
  EXPECT_THAT(refusal<UsageError>("a scale of 0", make({.init_scale = 0})),
              HasSubstr("init_scale must be above 0 and finite, got 0"));
  EXPECT_THAT(refusal<UsageError>("a growth of 1", make({.growth_factor = 1})),
              HasSubstr("growth_factor must be above 1, got 1"));
  EXPECT_THAT(refusal<UsageError>("a backoff of 1", make({.backoff_factor = 1})),
              HasSubstr("backoff_factor must be between 0 and 1, got 1"));
  EXPECT_THAT(refusal<UsageError>("an interval of 0", make({.growth_interval = 0})),
              HasSubstr("growth_interval must be 1 or more, got 0"));
}

TEST_P(GradScalerRefusalTest, CallsInTheWrongOrder) {
  Scaled training(device(), Way::unscaled);
  GradScaler& scaler = training.scaler;
  EXPECT_THAT(refusal<UsageError>("update first", [&] { scaler.update(); }),
              HasSubstr("update() was called before step()"));
  EXPECT_THAT(refusal<UsageError>("step without gradients", [&] { scaler.step(training.optimizer); }),
              AllOf(HasSubstr("step() of a GradScaler was called for an optimizer without gradients"),
                    HasSubstr("run the backward")));
  EXPECT_THAT(refusal<UsageError>("unscale_ without gradients", [&] { scaler.unscale_(training.optimizer); }),
              HasSubstr("unscale_() of a GradScaler was called for an optimizer without gradients"));
  EXPECT_THAT(refusal<UsageError>("found_inf too early", [&] { (void)scaler.found_inf(training.optimizer); }),
              HasSubstr("neither unscaled nor stepped"));
  training.backward(scaler.scale(training.forward()));
  scaler.unscale_(training.optimizer);
  EXPECT_THAT(refusal<UsageError>("unscale_ twice", [&] { scaler.unscale_(training.optimizer); }),
              AllOf(HasSubstr("unscale_() was called for this optimizer before"), HasSubstr("abandon_step()")));
  EXPECT_THAT(refusal<UsageError>("update without step", [&] { scaler.update(); }),
              AllOf(HasSubstr("after unscale_() and without step() of the GradScaler"),
                    HasSubstr("instead of optimizer.step()")));
  scaler.step(training.optimizer);
  EXPECT_THAT(refusal<UsageError>("step twice", [&] { scaler.step(training.optimizer); }),
              HasSubstr("step() was called for this optimizer before"));
  EXPECT_THAT(refusal<UsageError>("unscale_ after step", [&] { scaler.unscale_(training.optimizer); }),
              HasSubstr("unscale_() was called after step()"));
  scaler.update();
  EXPECT_THAT(refusal<UsageError>("a new scale of NaN", [&] { scaler.update(std::nan("")); }),
              HasSubstr("new_scale must be above 0 and finite, got nan"));
  EXPECT_THAT(refusal<UsageError>("a new scale of three", [&] { scaler.update(at::ones({3}, device())); }),
              HasSubstr("new_scale must be one floating-point element on"));
  training.step();
}

TEST_P(GradScalerRefusalTest, AnExceptionInAStepIsForgotten) {
  Scaled training(device(), Way::unscaled);
  training.backward(training.scaler.scale(training.forward()));
  training.scaler.unscale_(training.optimizer);
  training.scaler.abandon_step();
  training.step();
}

TEST_P(GradScalerRefusalTest, AFailedCaptureLeavesNoNotes) {
  Scaled training(device(), Way::unscaled);
  Graph graph(device());
  EXPECT_THROW(graph.capture(
                   [&] {
                     training.optimizer.zero_grad();
                     training.backward(training.scaler.scale(training.forward()));
                     training.scaler.unscale_(training.optimizer);
                     if (is_capturing()) throw std::runtime_error("in the middle");
                     training.scaler.step(training.optimizer);
                     training.scaler.update();
                   },
                   {.warmup = 1}),
               std::runtime_error);
  training.step();
  EXPECT_TRUE(same(training.scaler.growth_tracker(), at::ones({}, at::TensorOptions(at::kInt).device(device()))));
}

TEST_P(GradScalerRefusalTest, HalfOfTheCallsCaptured) {
  Scaled training(device());
  GradScaler& scaler = training.scaler;
  const auto captured = [&](const std::function<void()>& step) {
    Graph graph(device());
    graph.capture(step, {.warmup = 0});
  };
  const auto begin = [&] {
    training.optimizer.zero_grad();
    training.backward(scaler.scale(training.forward()));
  };
  captured([&] {
    begin();
    scaler.unscale_(training.optimizer);
  });
  EXPECT_THAT(
      refusal<UsageError>("a captured unscale_ and an eager step", [&] { scaler.step(training.optimizer); }),
      AllOf(HasSubstr("unscale_() was captured, and step() is called outside"), HasSubstr("one captured step")));
  scaler.abandon_step();
  captured([&] {
    begin();
    scaler.step(training.optimizer);
  });
  EXPECT_THAT(refusal<UsageError>("a captured step and an eager update", [&] { scaler.update(); }),
              HasSubstr("step() was captured, and update() is called outside"));
  scaler.abandon_step();
  begin();
  scaler.unscale_(training.optimizer);
  EXPECT_THAT(refusal<UsageError>("an eager unscale_ and a captured step",
                                  [&] { captured([&] { scaler.step(training.optimizer); }); }),
              HasSubstr("unscale_() was called outside of the capture that step() is in"));
  scaler.step(training.optimizer);
  EXPECT_THAT(refusal<UsageError>("an eager step and a captured update", [&] { captured([&] { scaler.update(); }); }),
              HasSubstr("step() was called outside of the capture that update() is in"));
  scaler.update();
}

// Steps that look at one tensor of the GradScale, or at none.
class Careless : public PlainSgd {
 public:
  Careless(std::vector<at::Tensor> parameters, bool takes_found_inf)
      : PlainSgd(std::move(parameters)), takes_found_inf_(takes_found_inf) {}
  void step(const GradScale& scale = {}) override {
    PlainSgd::step({.scale = {}, .found_inf = takes_found_inf_ ? scale.found_inf : at::Tensor()});
  }

 private:
  bool takes_found_inf_;
};

TEST_P(GradScalerRefusalTest, AnOptimizerThatDoesNotLookAtFoundInf) {
  SmallTraining training(device());
  GradScaler scaler(device());
  Careless none(training.parameters, false), half(training.parameters, true);
  training.backward(scaler.scale(training.forward()));
  const auto step = [&](Optimizer& optimizer) { return [&] { scaler.step(optimizer); }; };
  EXPECT_THAT(refusal<UsageError>("a step without found_inf", step(none)),
              AllOf(HasSubstr("did not look at found_inf of its GradScale"), HasSubstr("would not be skipped"),
                    HasSubstr("use an optimizer of Pianola's")));
  EXPECT_THAT(refusal<UsageError>("a step without the scale", step(half)),
              AllOf(HasSubstr("did not look at scale of its GradScale"), HasSubstr("too large by the scale")));
  Graph graph(device());
  EXPECT_THAT(refusal<UsageError>("a captured step without found_inf", [&] { graph.capture(step(none)); }),
              HasSubstr("did not look at found_inf of its GradScale"));
  scaler.unscale_(half);
  scaler.step(half);  // need not know the scale
  EXPECT_THAT(refusal<UsageError>("an unscaled step without found_inf",
                                  [&] {
                                    scaler.unscale_(none);
                                    scaler.step(none);
                                  }),
              HasSubstr("did not look at found_inf of its GradScale"));
}

TEST_P(GradScalerRefusalTest, TensorsItCannotScale) {
  GradScaler scaler(device());
  EXPECT_THAT(refusal<UsageError>("no loss", [&] { (void)scaler.scale({}); }), HasSubstr("is undefined"));
  EXPECT_THAT(refusal<UsageError>("a loss of integers", [&] { (void)scaler.scale(count(1)); }),
              HasSubstr("must be floating point, got Long"));
  const at::Tensor half = at::ones({3}, at::TensorOptions(at::kHalf).device(device())).requires_grad_();
  half.mutable_grad() = at::ones({3}, at::TensorOptions(at::kHalf).device(device()));
  PlainSgd optimizer({half});
  EXPECT_THAT(refusal<UsageError>("float16 gradients", [&] { scaler.unscale_(optimizer); }),
              AllOf(HasSubstr("is float16"), HasSubstr("under autocast")));
  const at::Tensor table = at::ones({3}, device()).requires_grad_();
  table.mutable_grad() = at::ones({3}, device()).to_sparse();
  PlainSgd sparse({table});
  EXPECT_THAT(refusal<UsageError>("a sparse gradient", [&] { scaler.step(sparse); }), HasSubstr("is sparse"));
  if (!on_cuda()) return;
  EXPECT_THAT(refusal<UsageError>("a loss elsewhere", [&] { (void)scaler.scale(at::ones({})); }),
              HasSubstr("the loss to scale is on cpu, the GradScaler on cuda:0"));
  GradScaler host(c10::kCPU);
  SmallTraining training(device());
  training.backward(training.forward());
  EXPECT_THAT(refusal<UsageError>("gradients elsewhere", [&] { host.step(training.optimizer); }),
              HasSubstr("a gradient of the optimizer is on cuda:0, the GradScaler on cpu"));
}

TEST_P(GradScalerRefusalTest, StatesItCannotLoad) {
  Scaled training(device());
  GradScaler& scaler = training.scaler;
  const auto load = [&](const c10::IValue& state) { return [&, state] { scaler.load_state_dict(state); }; };
  const auto changed = [&](const char* key, const c10::IValue& value) {
    c10::impl::GenericDict state = scaler.state_dict().toGenericDict();
    state.insert_or_assign(key, value);
    return state;
  };
  c10::impl::GenericDict missing = scaler.state_dict().toGenericDict();
  (void)missing.erase("_growth_tracker");
  EXPECT_THAT(refusal<UsageError>("no dictionary", load(3)), HasSubstr("is a dictionary, got Int"));
  EXPECT_THAT(refusal<UsageError>("an empty state", load(GradScaler(device(), {.enabled = false}).state_dict())),
              HasSubstr("was not enabled"));
  EXPECT_THAT(refusal<UsageError>("a missing value", load(missing)), HasSubstr("this one does not"));
  EXPECT_THAT(refusal<UsageError>("a value that is none", load(changed("scale", "8"))),
              HasSubstr("'scale' in the state_dict must be a number, got String"));
  EXPECT_THAT(refusal<UsageError>("a negative tracker", load(changed("_growth_tracker", -1))),
              HasSubstr("_growth_tracker must be 0 or more, got -1"));
  EXPECT_THAT(refusal<UsageError>("a growth below 1", load(changed("growth_factor", 0.5))),
              HasSubstr("growth_factor must be above 1"));
  scaler.load_state_dict(changed("growth_factor", 4.0));
  EXPECT_EQ(scaler.options().growth_factor, 4);
  Graph graph(device());
  graph.capture([&] { training.step(); });
  EXPECT_THAT(refusal<UsageError>("factors that a graph has frozen", load(changed("growth_factor", 2.0))),
              AllOf(HasSubstr("growth_factor 2"), HasSubstr("a captured step goes on with 4"),
                    HasSubstr("load it before the capture")));
  EXPECT_EQ(scaler.options().growth_factor, 4);
}

}  // namespace
}  // namespace pianola::grad_scaler_test

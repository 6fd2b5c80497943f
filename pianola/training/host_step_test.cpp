// torch's own optimizers and schedulers in captured steps, as they come.
#include <pianola/callable/testing/graphed_fixture.hpp>
#include <pianola/training/full_iteration.hpp>
#include <pianola/training/host_step.hpp>

#include <functional>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace pianola::host_step_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::expect_same;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::MlpNet;
using testing::NamedTensors;
using testing::refusal;
using testing::same;

namespace optim = torch::optim;

constexpr std::uint64_t kCalls = 24;
constexpr std::uint64_t kWarmup = 3;

struct Kind {
  std::string name;
  std::function<std::shared_ptr<optim::Optimizer>(std::vector<at::Tensor>)> make;
};

template <typename Optimizer, typename Options>
Kind kind(std::string name, Options options) {
  return {std::move(name), [options](std::vector<at::Tensor> parameters) {
            return std::make_shared<Optimizer>(std::move(parameters), options);
          }};
}

std::vector<Kind> kinds() {
  return {kind<optim::SGD>("SGD", optim::SGDOptions(0.05)),
          kind<optim::SGD>("SGD, momentum", optim::SGDOptions(0.05).momentum(0.9).nesterov(true).weight_decay(0.01)),
          kind<optim::Adam>("Adam", optim::AdamOptions(0.01)),
          kind<optim::Adam>("Adam, amsgrad", optim::AdamOptions(0.01).amsgrad(true).weight_decay(0.01)),
          kind<optim::AdamW>("AdamW", optim::AdamWOptions(0.01)),
          kind<optim::Adagrad>("Adagrad", optim::AdagradOptions(0.05).lr_decay(0.1)),
          kind<optim::RMSprop>("RMSprop", optim::RMSpropOptions(0.01).momentum(0.5).centered(true))};
}

// Of no family of torch's: counts its steps, decays its rate, and logs.
class Lookahead : public optim::Optimizer {
 public:
  explicit Lookahead(std::vector<at::Tensor> parameters)
      : Optimizer(std::move(parameters), std::make_unique<optim::SGDOptions>(0.05)) {
    for (const at::Tensor& parameter : param_groups()[0].params()) slow_.push_back(parameter.detach().clone());
  }
  at::Tensor step(LossClosure /*closure*/ = nullptr) override {
    const torch::NoGradGuard no_grad;
    const double rate = param_groups()[0].options().get_lr() / (1 + 0.1 * static_cast<double>(++steps));
    std::vector<at::Tensor>& parameters = param_groups()[0].params();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      at::Tensor& parameter = parameters[i];
      parameter.sub_(parameter.grad() * rate);
      slow_[i].lerp_(parameter, 1.0 / static_cast<double>(steps + 1));
    }
    return {};
  }

  std::int64_t steps = 0;

 private:
  std::vector<at::Tensor> slow_;
};

std::string bytes_of(torch::serialize::OutputArchive& archive) {
  std::ostringstream text;
  archive.save_to(text);
  return text.str();
}

std::string saved(const optim::Optimizer& optimizer) {
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  return bytes_of(archive);
}

// What an optimizer keeps of each parameter, on the host and on the device, as a checkpoint has it.
std::vector<std::string> states_of(const optim::Optimizer& optimizer) {
  std::vector<std::string> states;
  for (const at::Tensor& parameter : optimizer.param_groups()[0].params()) {
    const auto state = optimizer.state().find(parameter.unsafeGetTensorImpl());
    if (state == optimizer.state().end()) continue;
    torch::serialize::OutputArchive archive;
    state->second->serialize(archive);
    states.push_back(bytes_of(archive));
  }
  return states;
}

class HostStepTest : public testing::GraphedTest {
 protected:
  struct Trained {
    std::shared_ptr<MlpNet> net = make_net<MlpNet>();
    std::shared_ptr<optim::Optimizer> optimizer = {};
    std::shared_ptr<optim::StepLR> scheduler = {};

    at::Tensor train(const at::Tensor& x) {
      optimizer->zero_grad();
      const at::Tensor loss = square(net->forward(x));
      loss.backward();
      pianola::step(*optimizer);
      if (scheduler) pianola::step(*scheduler, *optimizer);
      return loss.detach();
    }
  };

  static Trained trained(const Kind& kind, bool with_scheduler = false) {
    Trained made;
    made.optimizer = kind.make(made.net->parameters());
    if (with_scheduler) made.scheduler = std::make_shared<optim::StepLR>(*made.optimizer, 5, 0.7);
    return made;
  }

  static double rate_of(const Trained& one) { return one.optimizer->param_groups()[0].options().get_lr(); }

  static void expect_same_training(Trained& graphed, Trained& eager, const std::string& when) {
    expect_same_state(*graphed.net, *eager.net, when);
    EXPECT_EQ(rate_of(graphed), rate_of(eager)) << when;
    EXPECT_TRUE(states_of(*graphed.optimizer) == states_of(*eager.optimizer)) << when;
  }

  // Both are called from call to call, with `between` in turn.
  void expect_equals_eager(const Kind& kind, bool with_scheduler,
                           const std::function<void(Trained&, std::uint64_t)>& between = {},
                           std::size_t recaptures = 0) {
    Trained eager = trained(kind, with_scheduler), trainee = trained(kind, with_scheduler);
    Graphed step = pianola::graphed([&](const at::Tensor& x) { return trainee.train(x); }, logged());
    for (std::uint64_t call = 0; call < kCalls; ++call) {
      const std::string when = kind.name + ", call " + std::to_string(call);
      EXPECT_TRUE(same(step(batch(call)), eager.train(batch(call)))) << when;
      expect_same_training(trainee, eager, when);
      if (!between) continue;
      between(trainee, call);
      between(eager, call);
    }
    EXPECT_EQ(latest(step).replays, kCalls - kWarmup - recaptures) << kind.name << ": " << latest(step).reason;
    EXPECT_EQ(latest(step).recaptures, recaptures) << kind.name;
    EXPECT_THAT(reasons, IsEmpty()) << kind.name;
  }
};
PIANOLA_ON_EVERY_DEVICE(HostStepTest);

TEST_P(HostStepTest, TorchsOptimizersReplayAndEqualEager) {
  for (const Kind& kind : kinds()) expect_equals_eager(kind, /*with_scheduler=*/false);
}

TEST_P(HostStepTest, ASchedulerInsideReplaysWithThem) {
  for (const Kind& kind : kinds()) expect_equals_eager(kind, /*with_scheduler=*/true);
}

TEST_P(HostStepTest, ARateThatIsSetBetweenCallsIsFollowed) {
  const auto warmed_up = [](Trained& one, std::uint64_t call) {  // from 0 on, and by hand later
    const double rate = call < 10 ? 0.01 * static_cast<double>(call) : 0.05 / static_cast<double>(call);
    one.optimizer->param_groups()[0].options().set_lr(rate);
  };
  for (const Kind& kind : kinds()) expect_equals_eager(kind, /*with_scheduler=*/false, warmed_up);
}

TEST_P(HostStepTest, AnOptimizerThatNobodyKnowsReplays) {
  const Kind lookahead{"Lookahead", [](std::vector<at::Tensor> parameters) {
                         return std::make_shared<Lookahead>(std::move(parameters));
                       }};
  expect_equals_eager(lookahead, /*with_scheduler=*/false);
  Trained one = trained(lookahead);
  Graphed step = pianola::graphed([&](const at::Tensor& x) { return one.train(x); }, logged());
  for (std::uint64_t call = 0; call < kCalls; ++call) (void)step(batch(call));
  EXPECT_EQ(dynamic_cast<Lookahead&>(*one.optimizer).steps, static_cast<std::int64_t>(kCalls));
}

TEST_P(HostStepTest, ACheckpointLoadedBetweenCallsGoesOnAsEager) {
  for (const Kind& kind : kinds()) {
    std::string kept;
    const auto load = [&](Trained& one, std::uint64_t call) {
      if (call == 8) kept = saved(*one.optimizer);
      if (call != 14) return;
      torch::serialize::InputArchive archive;
      std::istringstream text(kept);
      archive.load_from(text);
      one.optimizer->load(archive);
    };
    // What is loaded are other tensors, if there are any: one eager call, then a capture.
    expect_equals_eager(kind, /*with_scheduler=*/false, load, kind.name == "SGD" ? 0 : 1);
  }
}

TEST_P(HostStepTest, AFullIterationReplaysThem) {
  for (const Kind& kind : kinds()) {
    Trained eager = trained(kind, true), trainee = trained(kind, true);
    FullIteration iteration([&](const std::vector<c10::IValue>& microbatches) -> c10::IValue {
      return trainee.train(microbatches.at(0).toTensor());
    });
    for (std::uint64_t call = 0; call < kCalls; ++call) {
      const std::string when = kind.name + ", iteration " + std::to_string(call);
      EXPECT_TRUE(same(iteration({batch(call)}).toTensor(), eager.train(batch(call)))) << when;
      expect_same_training(trainee, eager, when);
    }
    EXPECT_EQ(iteration.info().signatures.at(0).replays, kCalls - kWarmup) << kind.name;
  }
}

TEST_P(HostStepTest, OutsideOfAGraphedFunctionItIsACall) {
  Trained one = trained(kinds()[4]), other = trained(kinds()[4]);
  for (std::uint64_t call = 0; call < 3; ++call) {
    EXPECT_TRUE(same(one.train(batch(call)), other.train(batch(call))));
  }
  int calls = 0;
  host_step({.run = [&] { ++calls; }});
  EXPECT_EQ(calls, 1);
  EXPECT_THAT(refusal<UsageError>("a part without a function", [] { host_step({}); }),
              HasSubstr("HostStep::run is empty"));
}

// It begins to do something else in the middle, and adds a parameter group.
TEST_P(HostStepTest, APartThatChangesItsOperationsStaysRight) {
  const auto make = [](Trained& one, std::int64_t& count) {
    return [&one, &count](const at::Tensor& x) {
      one.net->zero_grad();
      const at::Tensor loss = square(one.net->forward(x));
      loss.backward();
      host_step({.run =
                     [&one, &count] {
                       const torch::NoGradGuard no_grad;
                       ++count;
                       for (at::Tensor& parameter : one.net->parameters()) {
                         if (count > 10) parameter.mul_(1 - 0.001 * static_cast<double>(count));
                         parameter.sub_(parameter.grad(), 0.1 / static_cast<double>(count));
                       }
                     },
                 .parameters = one.net->parameters()});
      return loss.detach();
    };
  };
  Trained eager, trainee;
  std::int64_t eager_count = 0, count = 0;
  const auto expected = make(eager, eager_count);
  Graphed step = pianola::graphed(make(trainee, count), logged());
  for (std::uint64_t call = 0; call < kCalls; ++call) {
    EXPECT_TRUE(same(step(batch(call)), expected(batch(call)))) << call;
    expect_same_state(*trainee.net, *eager.net, std::to_string(call));
  }
  EXPECT_EQ(count, eager_count);
  EXPECT_GT(latest(step).replays, kCalls / 2);
}

TEST_P(HostStepTest, WhatAPartThrowsReachesTheCallerAndItsCountsAreEagers) {
  Trained eager = trained(kinds()[4]), trainee = trained(kinds()[4]);
  bool fails = false;
  const auto make = [&fails](Trained& one) {
    return [&one, &fails](const at::Tensor& x) {
      one.optimizer->zero_grad();
      const at::Tensor loss = square(one.net->forward(x));
      loss.backward();
      pianola::step(*one.optimizer);
      host_step({.run = [&fails] {
        if (fails) throw std::runtime_error("the log is full");
      }});
      return loss.detach();
    };
  };
  const auto expected = make(eager);
  Graphed step = pianola::graphed(make(trainee), logged());
  for (std::uint64_t call = 0; call < 10; ++call) {
    fails = call == 6;
    if (fails) {
      EXPECT_THROW((void)step(batch(call)), std::runtime_error);
      EXPECT_THROW((void)expected(batch(call)), std::runtime_error);
    } else {
      EXPECT_TRUE(same(step(batch(call)), expected(batch(call)))) << call;
    }
    expect_same_training(trainee, eager, "call " + std::to_string(call));
  }
}

// The step reads its loss in the call that captures, so that it is run again eagerly.
TEST_P(HostStepTest, ACaptureThatFailsLeavesCountsAndRatesAsTheyWere) {
  Trained eager = trained(kinds()[4], true), trainee = trained(kinds()[4], true);
  int runs = 0;
  Graphed step = pianola::graphed(
      [&](const at::Tensor& x) {
        const at::Tensor loss = trainee.train(x);
        if (++runs == static_cast<int>(kWarmup) + 1) (void)loss.item<float>();
        return loss;
      },
      logged());
  for (std::uint64_t call = 0; call < 12; ++call) {
    EXPECT_TRUE(same(step(batch(call)), eager.train(batch(call)))) << call;
    expect_same_training(trainee, eager, "call " + std::to_string(call));
  }
  EXPECT_THAT(reasons, ElementsAre(HasSubstr("aten::item")));
}

TEST_P(HostStepTest, APartThatDifferentiatesIsRefused) {
  const auto net = make_net<MlpNet>();
  Graphed step = pianola::graphed(
      [&](const at::Tensor& x) {
        net->zero_grad();
        host_step({.run = [&] { square(net->forward(x)).backward(); }, .parameters = net->parameters()});
      },
      logged());
  for (std::uint64_t call = 0; call < 6; ++call) (void)step.call({{batch(call)}});
  EXPECT_THAT(reasons, ElementsAre(AllOf(HasSubstr("computes what autograd differentiates"), HasSubstr("[PG110]"))));
}

// Without pianola::step() nobody knows where the optimizer's part of the step is.
TEST_P(HostStepTest, ACallThatReplaysCannotRepeatIsToldTheWay) {
  Trained one = trained(kinds()[4]);
  Graphed step = pianola::graphed(
      [&](const at::Tensor& x) {
        one.optimizer->zero_grad();
        const at::Tensor loss = square(one.net->forward(x));
        loss.backward();
        one.optimizer->step();
        return loss.detach();
      },
      logged());
  for (std::uint64_t call = 0; call < 6; ++call) (void)step(batch(call));
  EXPECT_THAT(reasons, ElementsAre(AllOf(HasSubstr("by the optimizer AdamW"), HasSubstr("pianola::step(optimizer)"))));
}

}  // namespace
}  // namespace pianola::host_step_test

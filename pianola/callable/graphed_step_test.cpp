// Functions that train by themselves: forward, backward and optimizer in one call.
#include <pianola/callable/testing/graphed_fixture.hpp>
#include <pianola/trace/testing/unpacked.hpp>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace pianola::graphed_step_test {
namespace {

using testing::expect_same;
using testing::FusedAdam;
using testing::MlpNet;
using testing::same;
using testing::SavedWithHooks;
using testing::TransformerNet;

// Its weight keeps its shape when it is transposed.
struct SquareNet : torch::nn::Module {
  SquareNet() { weight = register_parameter("weight", torch::rand({12, 12})); }
  torch::Tensor forward(const torch::Tensor& x) { return x.mm(weight); }
  torch::Tensor weight;
};

class GraphedStepTest : public testing::GraphedTest {
 protected:
  static constexpr std::uint64_t kSteps = 10;
  using Step = std::function<at::Tensor(const at::Tensor&)>;

  // The states after each step.
  template <typename Net>
  static testing::NamedTensors run(Net& net, const Step& step, const std::function<void(Net&, std::uint64_t)>& between,
                                   at::IntArrayRef shape) {
    seed(8);
    testing::NamedTensors made;
    for (std::uint64_t i = 0; i < kSteps; ++i) {
      made.emplace_back("loss", step(randn(shape, i)).detach());
      for (const auto& tensor : testing::clone_all(state_of_module(net))) made.push_back(tensor);
      if (between) between(net, i);
    }
    return made;
  }

  // `make_step(net)` is what is graphed, and run eagerly on a twin.
  template <typename Net, typename MakeStep>
  SignatureInfo expect_equals_eager(const MakeStep& make_step, at::IntArrayRef shape, GraphedOptions options = {},
                                    const std::function<void(Net&, std::uint64_t)>& between = {}) {
    const auto eager = make_net<Net>(), net = make_net<Net>();
    const auto expected = run<Net>(*eager, make_step(eager), between, shape);
    Graphed graphed = pianola::graphed(make_step(net), logged(std::move(options)));
    expect_same(run<Net>(
                    *net, [&](const at::Tensor& x) { return graphed(x); }, between, shape),
                expected);
    return latest(graphed);
  }

  // The usual step: gradients to none, forward, backward, descent.
  static Step train(const std::shared_ptr<MlpNet>& net) {
    return [net](const at::Tensor& x) {
      net->zero_grad();
      const at::Tensor loss = square(net->forward(x));
      loss.backward();
      descend(*net);
      return loss;
    };
  }

  static void descend(const torch::nn::Module& net) {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& parameter : net.parameters()) parameter.sub_(parameter.grad() * 0.1);
  }
};
PIANOLA_ON_EVERY_DEVICE(GraphedStepTest);

TEST_P(GraphedStepTest, WithTorchsSgdEqualsEager) {
  for (const bool set_to_none : {true, false}) {
    const auto make = [&](const std::shared_ptr<MlpNet>& net) {
      const auto sgd = std::make_shared<torch::optim::SGD>(
          net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
      return [net, sgd, set_to_none](const at::Tensor& x) {
        sgd->zero_grad(set_to_none);
        const at::Tensor loss = square(net->forward(x));
        loss.backward();
        sgd->step();
        return loss;
      };
    };
    const SignatureInfo info = expect_equals_eager<MlpNet>(make, {8, 12});
    EXPECT_EQ(info.kind, GraphedKind::step);
    EXPECT_EQ(info.replays, kSteps - 3) << info.reason;
    EXPECT_EQ(info.recaptures, 0U);
  }
}

TEST_P(GraphedStepTest, WithFusedAdamAndDropoutEqualsEager) {
  for (const bool set_to_none : {true, false}) {
    const auto make = [&](const std::shared_ptr<TransformerNet>& net) {
      const auto adam = std::make_shared<FusedAdam>(net->parameters());
      return [net, adam, set_to_none](const at::Tensor& x) {
        net->zero_grad(set_to_none);
        const at::Tensor loss = square(net->forward(x));
        loss.backward();
        adam->step();
        return loss;
      };
    };
    const SignatureInfo info = expect_equals_eager<TransformerNet>(make, {2, 8, 32});
    EXPECT_EQ(info.replays, kSteps - 3) << info.reason;
  }
}

TEST_P(GraphedStepTest, IsKnownByTheGradientsThatItLeaves) {
  const auto make = [](const std::shared_ptr<MlpNet>& net) {
    return [net](const at::Tensor& x) {
      const at::Tensor loss = square(net->forward(x));
      const auto parameters = net->parameters(), gradients = torch::autograd::grad({loss}, net->parameters());
      for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].mutable_grad() = gradients[i];
      return loss.detach();
    };
  };
  const SignatureInfo info = expect_equals_eager<MlpNet>(make, {8, 12});
  EXPECT_EQ(info.kind, GraphedKind::step);
  EXPECT_GT(info.replays, 0U) << info.reason;
}

TEST_P(GraphedStepTest, IsKnownByTheParametersThatItWrites) {
  const auto make = [](const std::shared_ptr<MlpNet>& net) {
    return [net](const at::Tensor& x) {
      const at::Tensor loss = square(net->forward(x));
      const auto parameters = net->parameters(), gradients = torch::autograd::grad({loss}, net->parameters());
      const at::NoGradGuard no_grad;
      for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].sub_(gradients[i] * 0.1);
      return loss;
    };
  };
  const SignatureInfo info = expect_equals_eager<MlpNet>(make, {8, 12});
  EXPECT_EQ(info.kind, GraphedKind::step);
  EXPECT_EQ(info.replays, kSteps - 3) << info.reason;
}

TEST_P(GraphedStepTest, MayClearGradientsAtItsEnd) {
  const auto make = [](const std::shared_ptr<MlpNet>& net) {
    return [net](const at::Tensor& x) {
      const at::Tensor loss = square(net->forward(x));
      loss.backward();
      descend(*net);
      net->zero_grad();
      return loss;
    };
  };
  EXPECT_EQ(expect_equals_eager<MlpNet>(make, {8, 12}).replays, kSteps - 3);
}

// The step finds the gradients of an eager call, then none, then its own: it needs a graph for each.
TEST_P(GraphedStepTest, AccumulatesOverCallsAndLeavesTheOptimizerOutside) {
  const auto make = [](const std::shared_ptr<MlpNet>& net) {
    return [net](const at::Tensor& x) {
      const at::Tensor loss = square(net->forward(x));
      loss.backward();
      return loss;
    };
  };
  const auto between = [](MlpNet& net, std::uint64_t step) {
    if (step % 2 == 0) return;
    descend(net);
    net.zero_grad();
  };
  const SignatureInfo info = expect_equals_eager<MlpNet>(make, {8, 12}, {.warmup = 1}, between);
  EXPECT_EQ(info.graphs, 3U);
  EXPECT_EQ(info.replays, kSteps - 1);
  EXPECT_EQ(info.recaptures, 0U);
}

TEST_P(GraphedStepTest, PutsGradientsBackThatTheCallerSetToNone) {
  const auto between = [](MlpNet& net, std::uint64_t step) {
    if (step % 3 == 0) net.zero_grad();
    if (step % 3 == 1) net.first->weight.mutable_grad() = torch::ones_like(net.first->weight).detach();
  };
  EXPECT_EQ(expect_equals_eager<MlpNet>(train, {8, 12}, {}, between).replays, kSteps - 3);
}

// The gradient is the same tensor in the same memory, which the graph would read as it lay.
TEST_P(GraphedStepTest, SeesGradientsThatAreTransposedInPlace) {
  const auto add_up = [](const std::shared_ptr<SquareNet>& net) {
    return [net](const at::Tensor& x) {
      const at::Tensor loss = square(net->forward(x));
      loss.backward();
      return loss;
    };
  };
  const auto start_afresh = [](const std::shared_ptr<SquareNet>& net) {
    return [net](const at::Tensor& x) {
      net->zero_grad();
      const at::Tensor loss = square(net->forward(x));
      loss.backward();
      return loss;
    };
  };
  const auto between = [](SquareNet& net, std::uint64_t step) {
    if (step == 5) net.weight.mutable_grad().t_();
  };
  EXPECT_EQ(expect_equals_eager<SquareNet>(add_up, {8, 12}, {}, between).graphs, 2U);
  EXPECT_EQ(expect_equals_eager<SquareNet>(start_afresh, {8, 12}, {}, between).graphs, 2U);
}

TEST_P(GraphedStepTest, AGradientThatIsKeptKeepsItsValue) {
  const auto net = make_net<MlpNet>();
  Graphed graphed = pianola::graphed(
      [net](const at::Tensor& x) {
        net->zero_grad();
        square(net->forward(x)).backward();
      },
      logged({.warmup = 1}));
  std::vector<at::Tensor> kept, values;
  for (std::uint64_t i = 0; i < 5; ++i) {
    (void)graphed.call({{batch(i)}});
    kept.push_back(net->first->weight.grad());
    values.push_back(kept.back().clone());
  }
  for (std::size_t i = 0; i < kept.size(); ++i) EXPECT_TRUE(same(kept[i], values[i])) << i;
}

// A generator and its critic: each runs through the other's parameters. The critic leaves the gradients there alone, the generator adds
// to them.
TEST_P(GraphedStepTest, TwoThatTrainByTurnsOnEachOthersParametersStayCaptured) {
  struct Pair {
    std::shared_ptr<MlpNet> generator = make_net<MlpNet>(), critic = make_net<MlpNet>();
  };
  const auto train_critic = [](const Pair& pair) -> Step {
    return [pair](const at::Tensor& x) {
      pair.critic->zero_grad();
      const at::Tensor loss = square(pair.critic->forward(pair.generator->forward(x).detach()));
      loss.backward();
      descend(*pair.critic);
      return loss;
    };
  };
  const auto train_generator = [](const Pair& pair) -> Step {
    return [pair](const at::Tensor& x) {
      pair.generator->zero_grad();
      const at::Tensor loss = square(pair.critic->forward(pair.generator->forward(x)));
      loss.backward();
      descend(*pair.generator);
      return loss;
    };
  };
  const Pair eager, trained;
  const Step critic_step = train_critic(eager), generator_step = train_generator(eager);
  Graphed critic = pianola::graphed(train_critic(trained), logged());
  Graphed generator = pianola::graphed(train_generator(trained), logged());
  for (std::uint64_t i = 0; i < 12; ++i) {
    const at::Tensor x = randn({i % 4 == 3 ? 5 : 8, 12}, i);
    EXPECT_TRUE(same(critic(x), critic_step(x).detach())) << i;
    EXPECT_TRUE(same(generator(x), generator_step(x).detach())) << i;
    expect_same(state_of_module(*trained.critic), state_of_module(*eager.critic));
    expect_same(state_of_module(*trained.generator), state_of_module(*eager.generator));
  }
  for (const Graphed* const one : {&critic, &generator}) {
    EXPECT_EQ(latest(*one).recaptures, 0U) << latest(*one).reason;
    EXPECT_EQ(one->info().signatures.at(1).replays, 6U) << one->info().signatures.at(1).reason;
  }
}

// It asks for its inputs' nodes before any operation does: those of the step before, which its loss keeps, run on another stream.
struct Scaled : torch::autograd::Function<Scaled> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& weight) {
    context->save_for_backward({x, weight});
    return x.mm(weight);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    return {gradients[0].mm(saved[1].t()), saved[0].t().mm(gradients[0])};
  }
};

TEST_P(GraphedStepTest, AnAutogradFunctionOfParametersIsCapturedWhileTheLossBeforeIsHeld) {
  const auto make_step = [](const std::shared_ptr<SquareNet>& net) -> Step {
    return [net](const at::Tensor& x) {
      net->zero_grad();
      at::Tensor loss = Scaled::apply(x, net->weight).pow(2).sum();
      loss.backward();
      descend(*net);
      return loss;
    };
  };
  const auto eager = make_net<SquareNet>(), net = make_net<SquareNet>();
  const Step step = make_step(eager);
  Graphed graphed = pianola::graphed(make_step(net), logged());
  at::Tensor loss;
  for (std::uint64_t i = 0; i < kSteps; ++i) {
    const at::Tensor x = randn({8, 12}, i);
    loss = graphed(x);
    EXPECT_TRUE(same(loss, step(x))) << i;
    expect_same(state_of_module(*net), state_of_module(*eager));
  }
  EXPECT_EQ(replays(graphed), kSteps - 3) << latest(graphed).reason;
}

TEST_P(GraphedStepTest, ACaptureNeedsNoMemoryForOldGradientsBesideNewOnes) {
  const auto net = make_net<MlpNet>();
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> before;
  std::vector<std::size_t> alive;
  Graphed graphed = pianola::graphed(
      [&](const at::Tensor& x) {
        for (const at::Tensor& parameter : net->parameters())
          parameter.mutable_grad().reset();  // as Python's zero_grad()
        const at::Tensor loss = square(net->forward(x));
        alive.push_back(static_cast<std::size_t>(
            std::count_if(before.begin(), before.end(), [](const auto& one) { return !one.expired(); })));
        loss.backward();
        descend(*net);
        return loss;
      },
      logged({.warmup = 2}));
  for (std::uint64_t i = 0; i < 4; ++i) {
    before.clear();
    for (const at::Tensor& parameter : net->parameters()) {
      if (parameter.grad().defined()) before.push_back(parameter.grad().storage().getWeakStorageImpl());
    }
    (void)graphed(batch(i));
  }
  EXPECT_THAT(alive, ::testing::ElementsAre(0, 0, 0)) << "two calls, and a capture";
  EXPECT_GT(latest(graphed).replays, 0U);
}

TEST_P(GraphedStepTest, ACaptureThatThrowsLeavesTheGradientsAsTheStepDid) {
  const auto make = [&](const std::shared_ptr<MlpNet>& net) {
    return [net, calls = 0](const at::Tensor& x) mutable {
      net->zero_grad();
      const at::Tensor loss = square(net->forward(x));
      if (++calls == 3) throw std::runtime_error("no more data");
      loss.backward();
      descend(*net);
      return loss;
    };
  };
  const auto eager = make_net<MlpNet>(), net = make_net<MlpNet>();
  const Step expected = make(eager);
  Graphed graphed = pianola::graphed(make(net), logged({.warmup = 2}));
  for (std::uint64_t i = 0; i < 6; ++i) {
    if (i == 2) {
      EXPECT_THROW((void)expected(batch(i)), std::runtime_error);
      EXPECT_THROW((void)graphed(batch(i)), std::runtime_error);
      for (const at::Tensor& parameter : net->parameters()) EXPECT_FALSE(parameter.grad().defined());
    } else {
      EXPECT_TRUE(same(graphed(batch(i)), expected(batch(i)))) << i;
    }
  }
  expect_same(state_of_module(*net), state_of_module(*eager));
}

TEST_P(GraphedStepTest, ReturnsWhatEagerReturnsWithoutHistory) {
  const auto net = make_net<MlpNet>();
  const at::Tensor buffer = torch::zeros({12}, device());
  Graphed graphed = pianola::graphed(
      [&](const at::Tensor& x) {
        net->zero_grad();
        const at::Tensor loss = square(net->forward(x));
        loss.backward();
        buffer.add_(x.detach()[0]);
        return std::vector<at::Tensor>{loss, loss, x, x[1], net->second->bias, buffer, net->second->bias.grad()};
      },
      logged({.warmup = 1}));
  const auto eager = make_net<MlpNet>();
  at::Tensor sum = torch::zeros({12}, device());
  for (std::uint64_t i = 0; i < 4; ++i) {
    const at::Tensor x = batch(i);
    const std::vector<at::Tensor> results = graphed.call({{x}});
    eager->zero_grad();
    const at::Tensor loss = square(eager->forward(x));
    loss.backward();
    sum = sum + x[0];
    EXPECT_TRUE(same(results[0], loss));
    EXPECT_TRUE(results[1].is_same(results[0]));
    EXPECT_TRUE(results[2].is_same(x));
    EXPECT_TRUE(same(results[3], x[1]));
    EXPECT_TRUE(results[4].is_same(net->second->bias));
    EXPECT_TRUE(results[5].is_same(buffer));
    EXPECT_TRUE(same(buffer, sum));
    EXPECT_TRUE(same(results[6], eager->second->bias.grad()));
    if (i > 0) {
      EXPECT_FALSE(results[0].requires_grad());
    }
  }
  EXPECT_EQ(latest(graphed).replays, 3U);
}

TEST_P(GraphedStepTest, NeedsNeitherInputsNorResults) {
  const at::Tensor state = torch::ones({4}, device());
  Graphed graphed = pianola::graphed([state]() { state.mul_(2).sub_(0.5); }, logged({.warmup = 2}));
  at::Tensor expected = torch::ones({4}, device());
  for (int i = 0; i < 6; ++i) {
    EXPECT_TRUE(graphed.call({}).empty());
    expected = expected * 2 - 0.5;
    EXPECT_TRUE(same(state, expected)) << i;
  }
  EXPECT_EQ(latest(graphed).kind, GraphedKind::step);
  EXPECT_EQ(latest(graphed).replays, 4U);
}

TEST_P(GraphedStepTest, IsCapturedAnewWhenAParameterIsReplaced) {
  const auto between = [](MlpNet& net, std::uint64_t step) {
    if (step == 4) net.first->weight.set_data(net.first->weight.detach().clone() * 2);
  };
  const SignatureInfo info = expect_equals_eager<MlpNet>(train, {8, 12}, {}, between);
  EXPECT_EQ(info.recaptures, 1U);
  EXPECT_EQ(info.replays, kSteps - 3 - 1);
}

TEST_P(GraphedStepTest, IsCapturedAnewWhenOtherStateIsReplaced) {
  const auto net = make_net<MlpNet>();
  at::Tensor scale = torch::full({}, 0.5, device());
  Graphed graphed = pianola::graphed(
      [&](const at::Tensor& x) {
        net->zero_grad();
        const at::Tensor loss = square(net->forward(x)) * scale;
        loss.backward();
        return loss;
      },
      logged({.warmup = 1}));
  const auto expected = [&](const at::Tensor& x) {
    const at::NoGradGuard no_grad;
    return square(net->forward(x)) * scale;
  };
  for (std::uint64_t i = 0; i < 8; ++i) {
    if (i == 4) scale = torch::full({}, 2.0, device());
    EXPECT_TRUE(same(graphed(batch(i)), expected(batch(i)))) << i;
  }
  EXPECT_EQ(latest(graphed).recaptures, 1U);
  EXPECT_EQ(latest(graphed).replays, 8U - 1 - 1);
}

TEST_P(GraphedStepTest, IsCapturedAnewWhenAParameterIsFrozen) {
  const auto make = [](const std::shared_ptr<MlpNet>& net) {
    return [net](const at::Tensor& x) {
      net->zero_grad();
      const at::Tensor loss = square(net->forward(x));
      loss.backward();
      return loss;
    };
  };
  const auto between = [](MlpNet& net, std::uint64_t step) {
    if (step == 4 || step == 7) net.first->weight.set_requires_grad(step == 7);
  };
  EXPECT_EQ(expect_equals_eager<MlpNet>(make, {8, 12}, {.warmup = 1}, between).recaptures, 2U);
}

// As masks are made, and as Rprop chooses its factors.
TEST_P(GraphedStepTest, NumbersAssignedByIndexEqualEager) {
  const auto make = [](const std::shared_ptr<MlpNet>& net) {
    return [net](const at::Tensor& x) {
      using torch::indexing::Ellipsis, torch::indexing::Slice;
      net->zero_grad();
      at::Tensor mask = torch::ones_like(x);
      mask.index_put_({Ellipsis, Slice(0, 3)}, 0);
      const at::Tensor loss = square(net->forward(x * mask));
      loss.backward();
      const at::NoGradGuard no_grad;
      for (const at::Tensor& parameter : net->parameters()) {
        at::Tensor factor = parameter.grad().sign();
        factor.index_put_({factor.gt(0)}, 1.2);
        factor.index_put_({factor.lt(0)}, 0.5);
        parameter.sub_(parameter.grad() * factor * 0.1);
      }
      return loss;
    };
  };
  const SignatureInfo info = expect_equals_eager<MlpNet>(make, {8, 12});
  EXPECT_EQ(info.kind, GraphedKind::step);
  EXPECT_EQ(info.replays, kSteps - 3) << info.reason;
}

TEST_P(GraphedStepTest, LeavesThatHooksGiveBackAreTheParameters) {
  const auto make = [](const std::shared_ptr<MlpNet>& net) {
    return [net](const at::Tensor& x) {
      net->zero_grad();
      const SavedWithHooks saved(net->first->weight);
      const at::Tensor loss = square(net->forward(x));
      loss.backward();
      const at::NoGradGuard no_grad;
      net->first->weight.grad().add_(saved.unpack(), 0.01);
      descend(*net);
      return loss;
    };
  };
  const SignatureInfo info = expect_equals_eager<MlpNet>(make, {8, 12});
  EXPECT_EQ(info.kind, GraphedKind::step);
  EXPECT_EQ(info.replays, kSteps - 3) << info.reason;
}

TEST_P(GraphedStepTest, CallsAGraphedModelInside) {
  const auto eager = make_net<MlpNet>(), net = make_net<MlpNet>();
  Graphed model = pianola::graphed(net, {.warmup = 1});
  const auto step = [](const std::shared_ptr<MlpNet>& module, auto&& forward) {
    const auto sgd = std::make_shared<torch::optim::SGD>(module->parameters(), torch::optim::SGDOptions(0.1));
    return [&forward, sgd](const at::Tensor& x) {
      sgd->zero_grad();
      const at::Tensor loss = square(forward(x));
      loss.backward();
      sgd->step();
      return loss;
    };
  };
  const auto eager_forward = [&](const at::Tensor& x) { return eager->forward(x); };
  const auto graphed_forward = [&](const at::Tensor& x) { return model(x); };
  const auto expected = run<MlpNet>(*eager, step(eager, eager_forward), {}, {8, 12});
  Graphed graphed = pianola::graphed(step(net, graphed_forward), logged());
  expect_same(run<MlpNet>(*net, [&](const at::Tensor& x) { return graphed(x); }, {}, {8, 12}), expected);
  EXPECT_EQ(latest(graphed).kind, GraphedKind::step);
  EXPECT_EQ(latest(graphed).replays, kSteps - 3) << latest(graphed).reason;
}

// 16 lengths by turns. The gradients of each length are held while others replay.
TEST_P(GraphedStepTest, ABankOfPlannedStepsEqualsEager) {
  const auto train = [](const std::shared_ptr<MlpNet>& net) {
    return [net](const at::Tensor& x) {
      net->zero_grad();
      const at::Tensor loss = square(net->forward(x));
      loss.backward();
      return loss.detach();
    };
  };
  const auto eager = make_net<MlpNet>(), net = make_net<MlpNet>();
  const Step expected = train(eager);
  Graphed graphed =
      pianola::graphed(train(net), logged({.warmup = 1, .output = OutputPolicy::alias, .plan_memory = true}));
  std::map<std::int64_t, std::pair<at::Tensor, at::Tensor>> results;  // by length: held, and as it was
  for (std::uint64_t i = 0; i < 96; ++i) {
    const std::int64_t length = 8 + 8 * static_cast<std::int64_t>(i * i * 7 % 16 ^ i % 16);
    const at::Tensor x = randn({length, 12}, i);
    const at::Tensor loss = graphed(x), eagerly = expected(x);
    ASSERT_TRUE(same(loss, eagerly)) << "call " << i;
    results[length] = {loss, eagerly.clone()};
    for (const auto& [of, pair] : results) EXPECT_TRUE(same(pair.first, pair.second)) << of << " after " << length;
    expect_same_state(*net, *eager);
    descend(*net);
    descend(*eager);
  }
  EXPECT_GT(replays(graphed), 30U);
  EXPECT_THAT(reasons, ::testing::IsEmpty());
}

// What it would keep lies in scratch of the other length: it is captured again, apart.
TEST_P(GraphedStepTest, APlannedStepThatKeepsScratchWhileItIsCapturedEqualsEager) {
  at::Tensor kept;
  const auto net = make_net<MlpNet>(), eager = make_net<MlpNet>();
  const auto train = [&](const std::shared_ptr<MlpNet>& of, bool keeps) {
    return [&, of, keeps](const at::Tensor& x) {
      of->zero_grad();
      at::Tensor scratch = x.repeat({256, 1}) * 3;
      if (keeps && is_recording() && x.size(0) == 16) kept = scratch;
      const at::Tensor loss = square(of->forward(x)) + scratch.sum() * 0;
      scratch.reset();
      loss.backward();
      return loss.detach();
    };
  };
  const Step expected = train(eager, false);
  Graphed graphed =
      pianola::graphed(train(net, true), logged({.warmup = 1, .plan_memory = true, .accept_capture_path = true}));
  for (std::uint64_t i = 0; i < 24; ++i) {
    const std::int64_t length = i % 2 == 0 ? 32 : 16;
    const at::Tensor x = randn({length, 12}, i);
    ASSERT_TRUE(same(graphed(x), expected(x))) << "call " << i;
    expect_same_state(*net, *eager);
    if (length == 32 || i < 16) continue;
    (void)graphed(randn({32, 12}, 100 + i));
    (void)expected(randn({32, 12}, 100 + i));
    EXPECT_TRUE(same(kept, x.repeat({256, 1}) * 3)) << "after a replay of the other length, call " << i;
  }
  EXPECT_GT(replays(graphed), 10U);
}

}  // namespace
}  // namespace pianola::graphed_step_test

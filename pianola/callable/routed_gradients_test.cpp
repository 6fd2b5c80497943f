#include <pianola/callable/graphed_callable.hpp>
#include <pianola/callable/named_gradients.hpp>
#include <pianola/torch_abi/autograd_node.hpp>

#include <pianola/callable/testing/mlp_twins.hpp>

#include <torch/csrc/autograd/utils/lambda_post_hook.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace pianola::routed_gradients_test {
namespace {

namespace autograd = torch::autograd;

using testing::clone_all;
using testing::expect_same;
using ::testing::HasSubstr;
using testing::MlpNet;
using testing::NamedTensors;
using testing::same;

// GradPolicy::clone and ::alias, with which autograd sees the parameters: what it does with gradients, it does here.
class RoutedGradientsTest : public testing::MlpTwinsTest {
 protected:
  static void for_each_policy(const std::function<void(GradPolicy)>& check) {
    for (const auto& [name, policy] : {std::pair("clone", GradPolicy::clone), std::pair("alias", GradPolicy::alias)}) {
      SCOPED_TRACE(name);
      check(policy);
    }
  }

  static void expect_all_same(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected) {
    ASSERT_EQ(actual.size(), expected.size());
    for (std::size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(same(actual[i], expected[i])) << "parameter " << i;
  }

  // As DistributedDataParallel does: told when the gradient is there. Returns what must stay alive.
  static torch_abi::NodeRef<> call_when_accumulated(const at::Tensor& parameter, const std::function<void()>& call) {
    const auto accumulator = autograd::impl::grad_accumulator(parameter);
    accumulator->add_post_hook(std::make_unique<autograd::utils::LambdaPostHook>(
        [call](const autograd::variable_list& outputs, const autograd::variable_list&) {
          call();
          return outputs;
        }));
    return accumulator;
  }
};
PIANOLA_ON_EVERY_DEVICE(RoutedGradientsTest);

TEST_P(RoutedGradientsTest, CanBeAskedForByGrad) {
  for_each_policy([](GradPolicy policy) {
    Twins twins({.grad = policy});
    EXPECT_EQ(twins.graphed.info().through_autograd, 6U);
    EXPECT_EQ(twins.graphed.info().parameters, 0U);
    for (std::uint64_t i = 0; i < 3; ++i) {
      const at::Tensor x = randn({8, 12}, i).requires_grad_();
      const auto expected = autograd::grad({Twins::loss_of(twins.eager->forward(x))}, twins.eager->parameters());
      expect_all_same(autograd::grad({Twins::loss_of(twins.graphed(x))}, twins.net->parameters()), expected);
      EXPECT_FALSE(twins.net->first->weight.grad().defined());
    }
  });
}

TEST_P(RoutedGradientsTest, AreNotSeenByGradWhereTheGraphAddsThemUp) {
  Twins twins({.grad = GradPolicy::accumulate});
  const at::Tensor loss = Twins::loss_of(twins.graphed(Twins::sample()));
  try {
    (void)autograd::grad({loss}, {twins.net->first->weight});
    ADD_FAILURE() << "was not refused";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("differentiated Tensors appears to not have been used in the graph"));
  }
  EXPECT_FALSE(twins.net->first->weight.grad().defined());
}

// Those that the graph adds up itself, once autograd was shown them.
TEST_P(RoutedGradientsTest, OfTheGraphItselfAreSeenWhereTheyAreNamed) {
  Twins twins({.grad = GradPolicy::accumulate, .slots = 2});
  const auto named = [](MlpNet& net) { return std::vector<at::Tensor>{net.second->bias, net.first->weight}; };
  for (std::uint64_t i = 0; i < 6; ++i) {
    const at::Tensor x = randn({8, 12}, i).requires_grad_(), y = randn({8, 12}, i).requires_grad_();
    const at::Tensor expected = Twins::loss_of(twins.eager->forward(x)), actual = Twins::loss_of(twins.graphed(y));
    expose_to_autograd(named(*twins.net));
    if (i % 3 == 0) {
      expect_all_same(autograd::grad({actual}, named(*twins.net)), autograd::grad({expected}, named(*twins.eager)));
    } else if (i % 3 == 1) {
      expected.backward({}, {}, false, {{twins.eager->second->bias, twins.eager->first->weight}});
      actual.backward({}, {}, false, {{twins.net->second->bias, twins.net->first->weight}});
      EXPECT_FALSE(y.grad().defined());
    } else {  // shown, and then not named
      expected.backward();
      actual.backward();
      EXPECT_TRUE(same(y.grad(), x.grad()));
    }
    twins.expect_equal("in step " + std::to_string(i));
  }
  EXPECT_EQ(twins.graphed.in_flight(), 0);
}

TEST_P(RoutedGradientsTest, OfTheGraphItselfAndAnInputAreNamedTogether) {
  Twins twins({.grad = GradPolicy::accumulate, .retain_graph = true});
  for (std::uint64_t i = 0; i < 3; ++i) {
    const at::Tensor x = randn({8, 12}, i).requires_grad_(), y = randn({8, 12}, i).requires_grad_();
    const at::Tensor expected = Twins::loss_of(twins.eager->forward(x)), actual = Twins::loss_of(twins.graphed(y));
    const std::vector<at::Tensor> weight = {twins.net->first->weight};
    expose_to_autograd(weight);
    expect_all_same(autograd::grad({actual}, {weight[0], y}, {}, /*retain_graph=*/true),
                    autograd::grad({expected}, {twins.eager->first->weight, x}, {}, /*retain_graph=*/true));
    twins.expect_equal("after grad() in step " + std::to_string(i));
    expected.backward();
    actual.backward();
    twins.expect_equal("after backward() in step " + std::to_string(i));
  }
}

TEST_P(RoutedGradientsTest, OfNamedParametersAloneAreAccumulated) {
  for_each_policy([](GradPolicy policy) {
    Twins twins({.grad = policy});
    for (std::uint64_t i = 0; i < 3; ++i) {
      const at::Tensor x = randn({8, 12}, i).requires_grad_(), y = randn({8, 12}, i).requires_grad_();
      Twins::loss_of(twins.eager->forward(x)).backward({}, {}, false, {{twins.eager->second->bias}});
      Twins::loss_of(twins.graphed(y)).backward({}, {}, false, {{twins.net->second->bias}});
      EXPECT_TRUE(twins.net->second->bias.grad().defined());
      EXPECT_FALSE(twins.net->first->weight.grad().defined());
      EXPECT_FALSE(y.grad().defined());
      twins.expect_equal("in step " + std::to_string(i));
    }
    twins.step(5);
    twins.expect_equal("after a backward for all");
  });
}

TEST_P(RoutedGradientsTest, PassHooksThatComeAfterCapture) {
  for_each_policy([](GradPolicy policy) {
    Twins twins({.grad = policy});
    twins.step(0);
    int hooks = 0, accumulated = 0;
    std::vector<torch_abi::NodeRef<>> alive;
    for (const auto& one : {twins.eager, twins.net}) {
      one->first->weight.register_hook([&](const at::Tensor& gradient) {
        ++hooks;
        return gradient * 2;
      });
      alive.push_back(call_when_accumulated(one->norm->bias, [&] { ++accumulated; }));
    }
    for (std::uint64_t i = 1; i < 4; ++i) {
      twins.step(i);
      twins.expect_equal("in step " + std::to_string(i));
    }
    EXPECT_EQ(hooks, 6);
    EXPECT_EQ(accumulated, 6);
  });
}

TEST_P(RoutedGradientsTest, AddUpOverMicrobatchesHoweverTheyAreZeroed) {
  for_each_policy([](GradPolicy policy) {
    for (const bool set_to_none : {true, false}) {
      SCOPED_TRACE(set_to_none ? "set to none" : "zeroed");
      Twins twins({.grad = policy});
      for (std::uint64_t i = 0; i < 12; ++i) {
        if (i % 4 == 0) {
          twins.eager->zero_grad(set_to_none);
          twins.net->zero_grad(set_to_none);
        }
        twins.step(i);
        twins.expect_equal("after microbatch " + std::to_string(i));
      }
    }
  });
}

TEST_P(RoutedGradientsTest, AddUpWithThoseOfTheSameParameterOutside) {
  for_each_policy([](GradPolicy policy) {
    Twins twins({.grad = policy});
    for (std::uint64_t i = 0; i < 3; ++i) {
      const at::Tensor x = randn({8, 12}, i).requires_grad_(), y = randn({8, 12}, i).requires_grad_();
      (Twins::loss_of(twins.eager->forward(x)) + twins.eager->first->weight.square().sum()).backward();
      (Twins::loss_of(twins.graphed(y)) + twins.net->first->weight.square().sum()).backward();
      twins.expect_equal("in step " + std::to_string(i));
    }
  });
}

TEST_P(RoutedGradientsTest, OfAFunctionsParametersAreFoundAndSeenToo) {
  for_each_policy([](GradPolicy policy) {
    const at::Tensor weight = randn({12, 5}).requires_grad_(), bias = randn({5}, 2).requires_grad_();
    const auto affine = [&](const at::Tensor& x) { return torch::tanh(torch::matmul(x, weight) + bias); };
    GraphedCallable graphed = make_graphed_callable(affine, {randn({8, 12})}, {.grad = policy});
    EXPECT_EQ(graphed.info().through_autograd, 2U);
    for (std::uint64_t i = 0; i < 3; ++i) {
      const at::Tensor x = randn({8, 12}, i);
      expect_all_same(autograd::grad({Twins::loss_of(graphed(x))}, {weight, bias}),
                      autograd::grad({Twins::loss_of(affine(x))}, {weight, bias}));
      Twins::loss_of(graphed(x)).backward();
    }
    std::vector<at::Tensor> expected;
    for (const at::Tensor& parameter : {weight, bias}) {
      expected.push_back(std::exchange(parameter.mutable_grad(), at::Tensor()));
    }
    for (std::uint64_t i = 0; i < 3; ++i) Twins::loss_of(affine(randn({8, 12}, i))).backward();
    expect_all_same({weight.grad(), bias.grad()}, expected);
  });
}

TEST_P(RoutedGradientsTest, AreTheBuffersThemselvesWithAlias) {
  Twins twins({.grad = GradPolicy::alias});
  const auto address_after_step = [&](std::uint64_t seed) {
    twins.each([](const at::Tensor& parameter) { parameter.mutable_grad().reset(); });
    twins.step(seed);
    return twins.net->first->weight.grad().const_data_ptr();
  };
  const void* buffer = address_after_step(0);
  for (std::uint64_t i = 1; i < 4; ++i) EXPECT_EQ(address_after_step(i), buffer);
}

TEST_P(RoutedGradientsTest, StayTheSameTensorWhileTheyAddUp) {
  for_each_policy([](GradPolicy policy) {
    Twins twins({.grad = policy});
    twins.step(1);
    const at::Tensor eager = twins.eager->first->weight.grad(), graphed = twins.net->first->weight.grad();
    for (std::uint64_t i = 2; i < 4; ++i) {
      twins.step(i);
      EXPECT_TRUE(twins.net->first->weight.grad().is_same(graphed));
      EXPECT_TRUE(same(graphed, eager)) << i;
    }
  });
}

// With alias, too: they make room when the next replay comes.
TEST_P(RoutedGradientsTest, ThatGradOrAHookGaveStayAsTheyAre) {
  for_each_policy([](GradPolicy policy) {
    Twins twins({.grad = policy});
    std::vector<at::Tensor> hooked;
    twins.net->second->weight.register_hook([&](const at::Tensor& gradient) { hooked.push_back(gradient); });
    twins.step(1);
    std::vector<at::Tensor> kept =
        autograd::grad({Twins::loss_of(twins.graphed(randn({8, 12}, 2).requires_grad_()))}, twins.net->parameters());
    kept.insert(kept.end(), hooked.begin(), hooked.end());
    std::vector<at::Tensor> expected;
    for (const at::Tensor& gradient : kept) expected.push_back(gradient.clone());
    const NamedTensors before = clone_all(state_of_module(*twins.net));
    (void)autograd::grad({Twins::loss_of(twins.graphed(Twins::sample()))}, {twins.net->first->bias});
    expect_all_same(kept, expected);
    expect_same(state_of_module(*twins.net), before, "after grad()");
  });
}

TEST_P(RoutedGradientsTest, WaitForTheOtherCallOfALoss) {
  for_each_policy([](GradPolicy policy) {
    Twins twins({.grad = policy, .slots = 2});
    const auto two_calls = [](std::uint64_t seed, const auto& call) {
      const at::Tensor a = randn({8, 12}, seed).requires_grad_(), b = randn({8, 12}, seed + 1).requires_grad_();
      const at::Tensor first = call(a), second = call(b);
      (Twins::loss_of(first) + Twins::loss_of(second)).backward();
      return NamedTensors{{"first input", a.grad()}, {"second input", b.grad()}};
    };
    for (std::uint64_t i = 0; i < 3; ++i) {
      const NamedTensors expected = two_calls(i, [&](const at::Tensor& x) { return twins.eager->forward(x); });
      expect_same(two_calls(i, [&](const at::Tensor& x) { return twins.graphed(x); }), expected);
      twins.expect_equal("in step " + std::to_string(i));
    }
  });
}

TEST_P(RoutedGradientsTest, OfAParameterThatCallablesShareAddUp) {
  for_each_policy([](GradPolicy policy) {
    const auto eager = make_net<MlpNet>(), net = make_net<MlpNet>();
    auto graphed =
        make_graphed_callables({net, net}, {{Twins::sample()}, {Twins::sample()}}, {.grad = policy, .slots = 2});
    for (std::uint64_t i = 0; i < 4; ++i) {
      const at::Tensor x = randn({8, 12}, i).requires_grad_(), y = randn({8, 12}, i).requires_grad_();
      Twins::loss_of(eager->forward(eager->forward(eager->forward(x)))).backward();
      Twins::loss_of(graphed[1](graphed[0](graphed[1](y)))).backward();
      EXPECT_TRUE(same(y.grad(), x.grad()));
      expect_same(state_of_module(*net), state_of_module(*eager), "in step " + std::to_string(i));
    }
  });
}

}  // namespace
}  // namespace pianola::routed_gradients_test

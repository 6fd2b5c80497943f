#include <pianola/callable/graphed_callable.hpp>
#include <pianola/core/error.hpp>

#include <pianola/callable/testing/mlp_twins.hpp>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace pianola::gradients_test {
namespace {

using ::testing::AllOf;
using testing::clone_all;
using testing::expect_same;
using ::testing::HasSubstr;
using testing::MlpNet;
using testing::NamedTensors;
using testing::refusal;
using testing::same;

// What becomes of the gradients of parameters.
class GradientsTest : public testing::MlpTwinsTest {
 protected:
  static void for_each_policy(const std::function<void(GradPolicy)>& check) {
    for (const auto& [name, policy] : {std::pair("accumulate", GradPolicy::accumulate),
                                       std::pair("clone", GradPolicy::clone), std::pair("alias", GradPolicy::alias)}) {
      SCOPED_TRACE(name);
      check(policy);
    }
  }
};
PIANOLA_ON_EVERY_DEVICE(GradientsTest);

TEST_P(GradientsTest, AddUpOverMicrobatches) {
  for_each_policy([](GradPolicy policy) {
    Twins twins({.grad = policy});
    for (std::uint64_t i = 0; i < 4; ++i) {
      twins.step(i);
      twins.expect_equal("after microbatch " + std::to_string(i));
    }
  });
}

TEST_P(GradientsTest, StartAfreshWhenSetToNone) {
  for_each_policy([](GradPolicy policy) {
    Twins twins({.grad = policy});
    for (std::uint64_t i = 0; i < 3; ++i) {
      twins.each([](const at::Tensor& parameter) { parameter.mutable_grad().reset(); });
      twins.step(i);
      twins.step(i + 10);
      twins.expect_equal("in step " + std::to_string(i));
    }
  });
}

TEST_P(GradientsTest, StartAfreshWhenZeroed) {
  for_each_policy([](GradPolicy policy) {
    Twins twins({.grad = policy});
    twins.step(1);
    for (std::uint64_t i = 0; i < 3; ++i) {
      twins.each([](const at::Tensor& parameter) { parameter.mutable_grad().zero_(); });
      twins.step(i);
      twins.step(i + 10);
      twins.expect_equal("in step " + std::to_string(i));
    }
  });
}

TEST_P(GradientsTest, GoToWhateverTensorTheUserPutsThere) {
  for_each_policy([](GradPolicy policy) {
    Twins twins({.grad = policy});
    twins.step(1);
    twins.each(
        [](const at::Tensor& parameter) { parameter.mutable_grad() = torch::full_like(parameter, 0.5).detach(); });
    const at::Tensor own = twins.net->first->weight.grad();
    twins.step(2);
    twins.step(3);
    twins.expect_equal("with replaced gradients");
    EXPECT_TRUE(twins.net->first->weight.grad().is_same(own));
    twins.each(
        [](const at::Tensor& parameter) { parameter.mutable_grad().set_data(torch::ones_like(parameter).detach()); });
    twins.step(4);
    twins.expect_equal("with replaced data of gradients");
  });
}

TEST_P(GradientsTest, SomeMayBeSetToNoneAndOthersNot) {
  for_each_policy([](GradPolicy policy) {
    Twins twins({.grad = policy});
    twins.step(1);
    for (const auto& net : {twins.eager, twins.net}) {
      net->first->weight.mutable_grad().reset();
      net->second->bias.mutable_grad() = torch::ones_like(net->second->bias).detach();
    }
    twins.step(2);
    twins.expect_equal("after a mixed change");
  });
}

TEST_P(GradientsTest, ThatAreDefinedAtCaptureStayWhereTheyAre) {
  const auto eager = make_net<MlpNet>(), net = make_net<MlpNet>();
  for (const auto& one : {eager, net}) {
    for (const at::Tensor& parameter : one->parameters()) {
      parameter.mutable_grad() = torch::full_like(parameter, 0.25).detach();
    }
  }
  const at::Tensor buffer = net->first->weight.grad();
  GraphedCallable graphed = make_graphed_callable(net, {Twins::sample()});
  expect_same(state_of_module(*net), state_of_module(*eager), "after capture");
  for (std::uint64_t i = 0; i < 3; ++i) {
    const at::Tensor x = randn({8, 12}, i).requires_grad_(), y = randn({8, 12}, i).requires_grad_();
    Twins::loss_of(eager->forward(x)).backward();
    Twins::loss_of(graphed(y)).backward();
    expect_same(state_of_module(*net), state_of_module(*eager), "in step " + std::to_string(i));
  }
  EXPECT_TRUE(net->first->weight.grad().is_same(buffer));
}

// What a trainer with one buffer for all gradients does: p.grad.data = another part of it.
TEST_P(GradientsTest, ThatMoveWithinTheirMemoryAreFollowed) {
  for_each_policy([](GradPolicy policy) {
    const auto eager = make_net<MlpNet>(), net = make_net<MlpNet>();
    const std::int64_t size = net->first->weight.numel();
    std::vector<at::Tensor> buffers;
    for (const auto& one : {eager, net}) {
      buffers.push_back(torch::zeros({2 * size}, device()));
      one->first->weight.mutable_grad() = buffers.back().narrow(0, 0, size).view({24, 12});
    }
    GraphedCallable graphed = make_graphed_callable(net, {Twins::sample()}, {.grad = policy});
    for (std::uint64_t i = 0; i < 4; ++i) {
      if (i == 2) {
        eager->first->weight.mutable_grad().set_data(buffers[0].narrow(0, size, size).view({24, 12}));
        net->first->weight.mutable_grad().set_data(buffers[1].narrow(0, size, size).view({24, 12}));
      }
      Twins::loss_of(eager->forward(randn({8, 12}, i).requires_grad_())).backward();
      Twins::loss_of(graphed(randn({8, 12}, i).requires_grad_())).backward();
      expect_same(state_of_module(*net), state_of_module(*eager), "in step " + std::to_string(i));
      EXPECT_TRUE(same(buffers[1], buffers[0])) << i;
    }
  });
}

TEST_P(GradientsTest, ThatMoveToTheMemoryOfAnotherAreFollowed) {
  for_each_policy([](GradPolicy policy) {
    Twins twins({.grad = policy});
    twins.step(1);
    for (const auto& net : {twins.eager, twins.net}) {
      net->norm->weight.mutable_grad().set_data(net->first->bias.grad());
      net->first->bias.mutable_grad().reset();
    }
    twins.step(2);
    twins.expect_equal("with a gradient in the memory of another");
    twins.step(3);
    twins.expect_equal("once more");
    twins.each([](const at::Tensor& parameter) { parameter.mutable_grad().reset(); });
    twins.step(4);
    twins.step(5);
    twins.expect_equal("after they were set to none");
  });
}

TEST_P(GradientsTest, ThatAreTransposedInPlaceAreFollowed) {
  for_each_policy([](GradPolicy policy) {
    std::vector<std::shared_ptr<torch::nn::LinearImpl>> nets;
    for (int k = 0; k < 2; ++k) {
      torch::manual_seed(5);
      nets.push_back(std::make_shared<torch::nn::LinearImpl>(12, 12));
      nets.back()->to(device());
    }
    GraphedCallable graphed = make_graphed_callable(nets[1], {Twins::sample()}, {.grad = policy});
    for (std::uint64_t i = 0; i < 5; ++i) {
      Twins::loss_of(nets[0]->forward(randn({8, 12}, i).requires_grad_())).backward();
      Twins::loss_of(graphed(randn({8, 12}, i).requires_grad_())).backward();
      expect_same(state_of_module(*nets[1]), state_of_module(*nets[0]), "in step " + std::to_string(i));
      for (const auto& net : nets) {
        if (i == 1) net->weight.mutable_grad().t_();
        if (i == 3) net->zero_grad();
      }
    }
  });
}

// As in eager, where a gradient that was taken away is another tensor from then on.
TEST_P(GradientsTest, ThatSomebodyKeepsDoNotChangeAnyMore) {
  for (const bool as_view : {false, true}) {
    Twins twins;
    twins.step(1);
    std::vector<at::Tensor> kept, expected;
    for (const at::Tensor& parameter : twins.net->parameters()) {
      kept.push_back(as_view ? parameter.grad().view(-1) : parameter.grad());
      expected.push_back(kept.back().clone());
    }
    for (std::uint64_t i = 2; i < 5; ++i) {
      if (i != 3) twins.each([](const at::Tensor& parameter) { parameter.mutable_grad().reset(); });
      twins.step(i);
      twins.expect_equal("in step " + std::to_string(i));
      for (std::size_t k = 0; k < kept.size(); ++k) EXPECT_TRUE(same(kept[k], expected[k])) << i;
    }
  }
}

TEST_P(GradientsTest, KeepTheSignOfZero) {
  const at::Tensor weight = torch::ones({4}, device()).requires_grad_();
  GraphedCallable graphed =
      make_graphed_callable([&](const at::Tensor& x) { return x * weight; }, {torch::zeros({4}, device())});
  for (int step = 0; step < 2; ++step) {
    weight.mutable_grad().reset();
    graphed(torch::full({4}, -0.0, device())).backward(torch::ones({4}, device()));
    EXPECT_TRUE(torch::signbit(weight.grad()).all().item<bool>());
  }
}

TEST_P(GradientsTest, StayAsTheyAreWhereOnlyInputGradientsAreAskedFor) {
  for_each_policy([](GradPolicy policy) {
    Twins twins({.grad = policy});
    twins.step(1);
    const NamedTensors before = clone_all(state_of_module(*twins.net));
    std::vector<at::Tensor> results;
    for (std::uint64_t i = 2; i < 4; ++i) {
      const at::Tensor x = randn({8, 12}, i).requires_grad_(), y = randn({8, 12}, i).requires_grad_();
      results.push_back(torch::autograd::grad({Twins::loss_of(twins.eager->forward(x))}, {x})[0]);
      results.push_back(torch::autograd::grad({Twins::loss_of(twins.graphed(y))}, {y})[0]);
    }
    EXPECT_TRUE(same(results[1], results[0])) << "which the second call must not have overwritten";
    EXPECT_TRUE(same(results[3], results[2]));
    expect_same(state_of_module(*twins.net), before, "after grad()");
    twins.step(5);
    twins.expect_equal("afterwards");
  });
}

TEST_P(GradientsTest, OfInputsThatAHookKeepsAreNotOverwritten) {
  Twins twins;
  std::vector<at::Tensor> kept, expected;
  for (std::uint64_t i = 0; i < 3; ++i) {
    const at::Tensor x = randn({8, 12}, i).requires_grad_(), y = randn({8, 12}, i).requires_grad_();
    const at::Tensor hooked_x = x * 2, hooked_y = y * 2;
    hooked_x.register_hook([&](const at::Tensor& gradient) { expected.push_back(gradient); });
    hooked_y.register_hook([&](const at::Tensor& gradient) { kept.push_back(gradient); });
    Twins::loss_of(twins.eager->forward(hooked_x)).backward();
    Twins::loss_of(twins.graphed(hooked_y)).backward();
  }
  ASSERT_EQ(kept.size(), 3U);
  for (std::size_t i = 0; i < kept.size(); ++i) EXPECT_TRUE(same(kept[i], expected[i])) << i;
}

TEST_P(GradientsTest, OfParametersWithHooksGoThroughAutograd) {
  const auto eager = make_net<MlpNet>(), net = make_net<MlpNet>();
  int calls = 0;
  for (const auto& one : {eager, net}) {
    one->first->weight.register_hook([&](const at::Tensor& gradient) {
      ++calls;
      return gradient * 2;
    });
  }
  GraphedCallable graphed = make_graphed_callable(net, {Twins::sample()});
  EXPECT_EQ(calls, 0) << "warm-up and capture run no hooks";
  EXPECT_EQ(graphed.info().through_autograd, 1U);
  EXPECT_EQ(graphed.info().parameters, 5U);
  for (std::uint64_t i = 0; i < 3; ++i) {
    const at::Tensor x = randn({8, 12}, i).requires_grad_(), y = randn({8, 12}, i).requires_grad_();
    Twins::loss_of(eager->forward(x)).backward();
    Twins::loss_of(graphed(y)).backward();
    expect_same(state_of_module(*net), state_of_module(*eager), "in step " + std::to_string(i));
  }
  EXPECT_EQ(calls, 6);
}

TEST_P(GradientsTest, OfNamedParametersCanBeAskedForByGrad) {
  const auto eager = make_net<MlpNet>(), net = make_net<MlpNet>();
  GraphedCallable graphed =
      make_graphed_callable(net, {Twins::sample()}, {.through_autograd = {net->first->weight, net->second->bias}});
  for (std::uint64_t i = 0; i < 3; ++i) {
    const at::Tensor x = randn({8, 12}, i).requires_grad_();
    const auto expected =
        torch::autograd::grad({Twins::loss_of(eager->forward(x))}, {eager->first->weight, eager->second->bias});
    const auto actual = torch::autograd::grad({Twins::loss_of(graphed(x))}, {net->first->weight, net->second->bias});
    for (std::size_t k = 0; k < 2; ++k) EXPECT_TRUE(same(actual[k], expected[k])) << i;
  }
  EXPECT_FALSE(net->first->bias.grad().defined());
}

TEST_P(GradientsTest, OfAParameterThatTwoCallablesShareAddUpAsInEager) {
  const auto make = [] {
    torch::manual_seed(3);
    return std::make_shared<torch::nn::LinearImpl>(12, 12);
  };
  const auto eager = make(), shared = make();
  eager->to(device());
  shared->to(device());
  auto graphed = make_graphed_callables({shared, shared}, {{Twins::sample()}, {Twins::sample()}});
  EXPECT_EQ(graphed[0].info().through_autograd, 2U);
  for (std::uint64_t i = 0; i < 4; ++i) {
    const at::Tensor x = randn({8, 12}, i).requires_grad_(), y = randn({8, 12}, i).requires_grad_();
    Twins::loss_of(eager->forward(torch::tanh(eager->forward(x)))).backward();
    Twins::loss_of(graphed[1](torch::tanh(graphed[0](y)))).backward();
    EXPECT_TRUE(same(y.grad(), x.grad()));
    expect_same(state_of_module(*shared), state_of_module(*eager), "in step " + std::to_string(i));
  }
}

TEST_P(GradientsTest, ASecondBackwardWorksWhereTheGraphWasRetained) {
  for_each_policy([](GradPolicy policy) {
    Twins twins({.grad = policy, .retain_graph = true});
    for (std::uint64_t i = 0; i < 3; ++i) {
      const at::Tensor x = randn({8, 12}, i).requires_grad_(), y = randn({8, 12}, i).requires_grad_();
      const at::Tensor eager_loss = Twins::loss_of(twins.eager->forward(x));
      const at::Tensor graphed_loss = Twins::loss_of(twins.graphed(y));
      for (const bool retain : {true, true, false}) {
        eager_loss.backward({}, retain);
        graphed_loss.backward({}, retain);
        twins.expect_equal("in step " + std::to_string(i));
        EXPECT_TRUE(same(y.grad(), x.grad()));
      }
      EXPECT_EQ(twins.graphed.in_flight(), 0);
    }
  });
}

TEST_P(GradientsTest, ASecondBackwardIsRefusedOtherwise) {
  Twins twins;
  const at::Tensor out = twins.graphed(randn({8, 12}).requires_grad_());
  out.backward(torch::ones_like(out), /*retain_graph=*/true);
  const NamedTensors before = clone_all(state_of_module(*twins.net));
  const std::string message = refusal<UsageError>("second backward", [&] { out.backward(torch::ones_like(out)); });
  EXPECT_THAT(message, AllOf(HasSubstr("second time"), HasSubstr("callable 1"), HasSubstr("retain_graph")));
  expect_same(state_of_module(*twins.net), before, "after the refusal");
}

TEST_P(GradientsTest, OfGradientsAreRefused) {
  Twins twins;
  const at::Tensor x = randn({8, 12}).requires_grad_();
  const at::Tensor out = twins.graphed(x);
  const std::string message = refusal<UsageError>("double backward", [&] {
    torch::autograd::grad({Twins::loss_of(out)}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true);
  });
  EXPECT_THAT(message, AllOf(HasSubstr("gradients of gradients"), HasSubstr("create_graph")));
}

TEST_P(GradientsTest, AHookThatComesAfterCaptureIsRefused) {
  Twins twins;
  twins.step(1);
  const NamedTensors before = clone_all(state_of_module(*twins.net));
  const unsigned hook = twins.net->first->weight.register_hook([](const at::Tensor& gradient) { return gradient * 2; });
  const at::Tensor out = twins.graphed(randn({8, 12}).requires_grad_());
  const std::string message = refusal<GuardError>("late hook", [&] { out.sum().backward(); });
  EXPECT_THAT(message, AllOf(HasSubstr("'first.weight'"), HasSubstr("[24, 12]"), HasSubstr("hook"),
                             HasSubstr("through_autograd")));
  expect_same(state_of_module(*twins.net), before, "after the refusal");
  twins.net->first->weight.remove_hook(hook);
}

TEST_P(GradientsTest, OfParametersThatGetNoneStayUndefined) {
  const at::Tensor used = randn({12}).requires_grad_(), unused = randn({12}, 2).requires_grad_();
  GraphedCallable graphed = make_graphed_callable(
      [&](const at::Tensor& x) {
        (void)(x * unused);
        return x * used;
      },
      {randn({8, 12})});
  graphed(randn({8, 12})).sum().backward();
  EXPECT_TRUE(used.grad().defined());
  EXPECT_FALSE(unused.grad().defined());
}

TEST_P(GradientsTest, ThatAreSparseAreRefused) {
  torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(10, 4).sparse(true));
  embedding->to(device());
  const std::string message =
      refusal<UnsupportedError>("sparse gradient", [&] { (void)make_graphed_callable(embedding, {randint(10, {5})}); });
  EXPECT_THAT(message, AllOf(HasSubstr("'weight'"), HasSubstr("sparse")));
  EXPECT_FALSE(embedding->weight.grad().defined());
}

TEST_P(GradientsTest, SurviveTheCallable) {
  std::vector<at::Tensor> gradients;
  const auto net = make_net<MlpNet>();
  {
    GraphedCallable graphed = make_graphed_callable(net, {Twins::sample()});
    Twins::loss_of(graphed(Twins::sample())).backward();
    for (const at::Tensor& parameter : net->parameters()) gradients.push_back(parameter.grad().clone());
  }
  for (std::size_t i = 0; i < gradients.size(); ++i) EXPECT_TRUE(same(net->parameters()[i].grad(), gradients[i]));
  Twins::loss_of(net->forward(Twins::sample())).backward();
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    EXPECT_TRUE(same(net->parameters()[i].grad(), gradients[i] + gradients[i]));
  }
}

// One after the other: eager adds them to one another first, unless they come from two backward passes.
TEST_P(GradientsTest, AreAddedByTheGraphForEachCallOfALoss) {
  Twins twins({.grad = GradPolicy::accumulate, .slots = 2});
  for (std::uint64_t i = 0; i < 3; ++i) {
    const at::Tensor a = randn({8, 12}, 10 + i), b = randn({8, 12}, 20 + i);
    const at::Tensor xa = a.clone().requires_grad_(), xb = b.clone().requires_grad_();
    const at::Tensor ya = a.clone().requires_grad_(), yb = b.clone().requires_grad_();
    Twins::loss_of(twins.eager->forward(xa)).backward();  // of the later call, whose backward pass comes first
    Twins::loss_of(twins.eager->forward(xb)).backward();
    const at::Tensor first = twins.graphed(yb), second = twins.graphed(ya);
    (Twins::loss_of(first) + Twins::loss_of(second)).backward();
    EXPECT_TRUE(same(ya.grad(), xa.grad()));
    EXPECT_TRUE(same(yb.grad(), xb.grad()));
    twins.expect_equal("in step " + std::to_string(i));
  }
}

// The function uses its input three times, and so does what is around it. Without gradient_per_use the graph adds up its own first.
TEST_P(GradientsTest, OfAnInputAreAddedUpInEagersOrderWhereEachUseHasItsOwn) {
  const auto function = [](const at::Tensor& x) { return x + x.tanh() * x.cos(); };
  const std::vector<c10::IValue> sample = {randn({64, 12}).requires_grad_()};
  GraphedCallable apart = make_graphed_callable(function, sample, {.gradient_per_use = true});
  GraphedCallable summed = make_graphed_callable(function, sample);
  int different = 0;
  for (std::uint64_t call = 0; call < 6; ++call) {
    const auto gradient = [&](auto&& forward) {
      const at::Tensor leaf = randn({64, 12}, 10 + call).requires_grad_();
      const at::Tensor x = leaf * 3;
      const at::Tensor before = x.sigmoid();
      const at::Tensor y = forward(x);
      const at::Tensor after = x.sin();  // whose gradient comes first
      (y * after + before.square()).square().sum().backward();
      return leaf.grad();
    };
    const at::Tensor expected = gradient(function);
    EXPECT_TRUE(same(gradient([&](const at::Tensor& x) { return apart(x); }), expected)) << call;
    different += same(gradient([&](const at::Tensor& x) { return summed(x); }), expected) ? 0 : 1;
  }
  EXPECT_GT(different, 0) << "the test shows nothing";
}

TEST_P(GradientsTest, StridesThatAreNoDenseLayoutAreRefused) {
  const auto function = [](const at::Tensor& x) { return x * 2; };
  for (const std::vector<std::int64_t>& strides : {std::vector<std::int64_t>{4, 4}, {1}}) {
    EXPECT_THAT(
        refusal<UsageError>(
            "gradient strides",
            [&] {
              (void)make_graphed_callable(function, {randn({8, 4}).requires_grad_()}, {.gradient_strides = {strides}});
            }),
        HasSubstr("which is no dense layout of its shape"));
  }
  (void)make_graphed_callable(function, {randn({8, 4}).requires_grad_()}, {.gradient_strides = {{1, 8}}});
}

}  // namespace
}  // namespace pianola::gradients_test

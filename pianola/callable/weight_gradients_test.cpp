// CallableOptions::delay_weight_gradients: a backward pass in two parts gives what eager's gives in one.
#include <pianola/callable/graphed_callable.hpp>
#include <pianola/core/error.hpp>
#include <pianola/schedule/schedule.hpp>

#include <pianola/callable/testing/twins.hpp>

#include <memory>
#include <string>
#include <vector>

namespace pianola::weight_gradients_test {
namespace {

using ::testing::AllOf;
using testing::expect_same;
using ::testing::HasSubstr;
using testing::MlpNet;
using testing::NamedTensors;
using testing::refusal;
using testing::same;
using testing::TransformerNet;

// A small convolutional classifier, as tutorials write it.
struct TwoConvNet : torch::nn::Module {
  TwoConvNet()
      : first(register_module("first", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3).padding(1)))),
        norm(register_module("norm", torch::nn::BatchNorm2d(8))),
        second(register_module("second", torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 4, 3).stride(2).bias(false)))),
        head(register_module("head", torch::nn::Linear(4 * 3 * 3, 5))) {}
  at::Tensor forward(const at::Tensor& x) {
    return head->forward(torch::relu(second->forward(torch::relu(norm->forward(first->forward(x))))).flatten(1));
  }
  torch::nn::Conv2d first;
  torch::nn::BatchNorm2d norm;
  torch::nn::Conv2d second;
  torch::nn::Linear head;
};

// The same weight in a product and in an embedding, and another one in two products.
struct TwiceNet : torch::nn::Module {
  TwiceNet()
      : table(register_parameter("table", torch::randn({16, 8}))),
        twice(register_parameter("twice", torch::randn({8, 8}))) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor h = torch::tanh(torch::matmul(x + table.mean(0), twice));
    return torch::matmul(torch::matmul(h, twice), table.t());
  }
  at::Tensor table, twice;
};

class WeightGradientsTest : public testing::CallableTest {
 protected:
  template <typename Net>
  struct Pair {
    std::shared_ptr<Net> eager = make_net<Net>(), graphed = make_net<Net>();
  };

  // Training steps of both, several backward passes adding up in each.
  template <typename Net>
  static CallableInfo expect_trains_as_eager(at::IntArrayRef shape, CallableOptions options, bool input_needs_grad) {
    options.delay_weight_gradients = true;
    const Pair<Net> nets;
    const auto input = [&](std::uint64_t number) { return randn(shape, number).requires_grad_(input_needs_grad); };
    GraphedCallable graphed = make_graphed_callable(nets.graphed, {input(0)}, options);
    for (std::uint64_t step = 0; step < 4; ++step) {
      SCOPED_TRACE("step " + std::to_string(step));
      nets.eager->zero_grad(/*set_to_none=*/step != 2);
      nets.graphed->zero_grad(/*set_to_none=*/step != 2);
      for (std::uint64_t microbatch = 0; microbatch < 2; ++microbatch) {
        const at::Tensor x = input(10 * step + microbatch), y = input(10 * step + microbatch);
        seed(step);
        nets.eager->forward(x).square().sum().backward();
        seed(step);
        graphed(y).square().sum().backward();
        if (input_needs_grad) {
          EXPECT_TRUE(same(x.grad(), y.grad()));
        }
        EXPECT_TRUE(graphed.backward_weights());
        EXPECT_FALSE(graphed.backward_weights());
      }
      expect_same(state_of_module(*nets.graphed), state_of_module(*nets.eager));
    }
    return graphed.info();
  }
};
PIANOLA_ON_EVERY_DEVICE(WeightGradientsTest);

TEST_P(WeightGradientsTest, AreThoseOfEager) {
  for (const GradPolicy policy : {GradPolicy::accumulate, GradPolicy::clone, GradPolicy::alias}) {
    SCOPED_TRACE(static_cast<int>(policy));
    const CallableInfo info = expect_trains_as_eager<TransformerNet>({2, 8, 32}, {.grad = policy}, true);
    EXPECT_EQ(info.graphs, 3U);
    EXPECT_EQ(info.delayed, 4U);  // weights of four linear layers, whose biases are added by themselves to 3-d tensors
    EXPECT_EQ(info.parameters + info.through_autograd, 12U);
  }
}

TEST_P(WeightGradientsTest, AreThoseOfEagerWhereTheInputNeedsNone) {
  expect_trains_as_eager<TransformerNet>({2, 8, 32}, {}, false);
  expect_trains_as_eager<MlpNet>({8, 12}, {}, false);
}

TEST_P(WeightGradientsTest, OfConvolutionsAreThoseOfEager) {
  const CallableInfo info = expect_trains_as_eager<TwoConvNet>({2, 3, 8, 8}, {}, true);
  EXPECT_EQ(info.delayed, 5U);  // two convolutions, a bias, and the head's two
  expect_trains_as_eager<TwoConvNet>({2, 3, 8, 8}, {.slots = 2}, false);
}

TEST_P(WeightGradientsTest, OfAWeightThatIsUsedElsewhereAreComputedAtOnce) {
  const CallableInfo info = expect_trains_as_eager<TwiceNet>({4, 8}, {}, true);
  EXPECT_EQ(info.delayed, 1U);  // `twice`, of whose two products none is anything else
}

TEST_P(WeightGradientsTest, OfANamedParameterAreComputedAtOnce) {
  const Pair<MlpNet> nets;
  const at::Tensor named = nets.graphed->parameters().front();
  GraphedCallable graphed = make_graphed_callable(nets.graphed, {randn({8, 12}, 1)},
                                                  {.through_autograd = {named}, .delay_weight_gradients = true});
  graphed(randn({8, 12}, 2)).sum().backward();
  EXPECT_TRUE(named.grad().defined());
  EXPECT_TRUE(graphed.backward_weights());
}

TEST_P(WeightGradientsTest, AreNotThereBeforeTheyAreAskedFor) {
  const Pair<MlpNet> nets;
  GraphedCallable graphed = make_graphed_callable(nets.graphed, {randn({8, 12}, 1)}, {.delay_weight_gradients = true});
  graphed(randn({8, 12}, 2)).sum().backward();
  const auto linear = {nets.graphed->first, nets.graphed->second};
  for (const torch::nn::Linear& one : linear) EXPECT_FALSE(one->weight.grad().defined() || one->bias.grad().defined());
  EXPECT_TRUE(nets.graphed->norm->weight.grad().defined());
  EXPECT_EQ(graphed.in_flight(), 1);
  EXPECT_TRUE(graphed.backward_weights());
  EXPECT_EQ(graphed.in_flight(), 0);
  for (const torch::nn::Linear& one : linear) EXPECT_TRUE(one->weight.grad().defined() && one->bias.grad().defined());
}

// A pipeline of zero bubbles: backward passes in a row, the weights of all of them at the end.
TEST_P(WeightGradientsTest, OfSeveralBackwardsComeInTheirOrder) {
  const Pair<TransformerNet> nets;
  const auto input = [&](std::uint64_t number) { return randn({2, 8, 32}, number).requires_grad_(); };
  GraphedCallable graphed =
      make_graphed_callable(nets.graphed, {input(0)}, {.slots = 3, .delay_weight_gradients = true});
  for (std::uint64_t step = 0; step < 4; ++step) {
    nets.eager->zero_grad();
    nets.graphed->zero_grad();
    std::vector<at::Tensor> outputs;
    seed(step);
    for (std::uint64_t i = 0; i < 3; ++i) outputs.push_back(graphed(input(10 * step + i)));
    for (const at::Tensor& output : outputs) output.square().sum().backward();
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(graphed.backward_weights());
    outputs.clear();
    seed(step);
    for (std::uint64_t i = 0; i < 3; ++i) outputs.push_back(nets.eager->forward(input(10 * step + i)));
    for (const at::Tensor& output : outputs) output.square().sum().backward();
    expect_same(state_of_module(*nets.graphed), state_of_module(*nets.eager), "step " + std::to_string(step));
  }
}

TEST_P(WeightGradientsTest, SeeHooksOfTheirParametersWhenTheyCome) {
  const Pair<MlpNet> nets;
  const at::Tensor weight = nets.graphed->parameters().front();
  int calls = 0;
  weight.register_hook([&](const at::Tensor& gradient) {
    ++calls;
    return gradient * 2;
  });
  GraphedCallable graphed = make_graphed_callable(nets.graphed, {randn({8, 12}, 1)}, {.delay_weight_gradients = true});
  graphed(randn({8, 12}, 2)).sum().backward();
  EXPECT_EQ(calls, 0);
  EXPECT_TRUE(graphed.backward_weights());
  EXPECT_EQ(calls, 1);
  nets.eager->forward(randn({8, 12}, 2)).sum().backward();
  EXPECT_TRUE(same(weight.grad(), nets.eager->parameters().front().grad() * 2));
}

TEST_P(WeightGradientsTest, OfOutputsThatDidNotReachTheLossStayUndefined) {
  struct TwoHeads : torch::nn::Module {
    TwoHeads()
        : left(register_module("left", torch::nn::Linear(12, 4))),
          right(register_module("right", torch::nn::Linear(12, 4))) {}
    std::vector<at::Tensor> forward(const at::Tensor& x) { return {left->forward(x), right->forward(x)}; }
    torch::nn::Linear left, right;
  };
  const auto net = make_net<TwoHeads>();
  GraphedCallable graphed = make_graphed_callable(net, {randn({8, 12}, 1)}, {.delay_weight_gradients = true});
  graphed.call(std::vector<at::Tensor>{randn({8, 12}, 2)}).front().sum().backward();
  EXPECT_TRUE(graphed.backward_weights());
  EXPECT_TRUE(net->left->weight.grad().defined());
  EXPECT_FALSE(net->right->weight.grad().defined());
}

TEST_P(WeightGradientsTest, ASlotThatOwesThemIsNotTakenByAnybody) {
  for (const OnFull on_full : {OnFull::refuse, OnFull::overtake}) {
    const Pair<MlpNet> nets;
    GraphedCallable graphed =
        make_graphed_callable(nets.graphed, {randn({8, 12}, 1)}, {.on_full = on_full, .delay_weight_gradients = true});
    graphed(randn({8, 12}, 2)).square().sum().backward();
    EXPECT_THAT(
        refusal<UsageError>("a slot that owes",
                            [&] {
                              (void)graphed(randn({8, 12}, 3));
                            }),
        AllOf(HasSubstr("1 of 1 calls wait for backward_weights()"), HasSubstr("call it once for each backward")));
    EXPECT_TRUE(graphed.backward_weights());
    nets.eager->forward(randn({8, 12}, 2)).square().sum().backward();
    expect_same(state_of_module(*nets.graphed), state_of_module(*nets.eager));
  }
}

TEST_P(WeightGradientsTest, ASecondBackwardBeforeThemIsRefused) {
  const Pair<MlpNet> nets;
  GraphedCallable graphed =
      make_graphed_callable(nets.graphed, {randn({8, 12}, 1)}, {.retain_graph = true, .delay_weight_gradients = true});
  const at::Tensor loss = graphed(randn({8, 12}, 2)).square().sum();
  const at::Tensor twin = nets.eager->forward(randn({8, 12}, 2)).square().sum();
  loss.backward({}, /*retain_graph=*/true);
  EXPECT_THAT(refusal<GuardError>("backward twice", [&] { loss.backward({}, /*retain_graph=*/true); }),
              AllOf(HasSubstr("before the gradients of weights"), HasSubstr("call backward_weights()")));
  EXPECT_TRUE(graphed.backward_weights());
  loss.backward();
  EXPECT_TRUE(graphed.backward_weights());
  twin.backward({}, /*retain_graph=*/true);
  twin.backward();
  expect_same(state_of_module(*nets.graphed), state_of_module(*nets.eager));
}

TEST_P(WeightGradientsTest, AWriteToWhatTheyNeedIsRefused) {
  const Pair<MlpNet> nets;
  GraphedCallable graphed = make_graphed_callable(nets.graphed, {randn({8, 12}, 1)}, {.delay_weight_gradients = true});
  const at::Tensor buffer = graphed.static_inputs().front();
  graphed(randn({8, 12}, 2)).sum().backward();
  buffer.zero_();
  EXPECT_THAT(refusal<GuardError>("a write between", [&] { (void)graphed.backward_weights(); }),
              HasSubstr("the static buffer of input 0 was written after the forward pass"));
}

TEST_P(WeightGradientsTest, OfAWeightOfTwoCallablesAreRefused) {
  const Pair<MlpNet> nets;
  EXPECT_THAT(refusal<UsageError>("a shared weight",
                                  [&] {
                                    (void)make_graphed_callables({nets.graphed, nets.graphed},
                                                                 {{randn({8, 12}, 1)}, {randn({8, 12}, 1)}},
                                                                 {.delay_weight_gradients = true});
                                  }),
              AllOf(HasSubstr("belongs to several callables"), HasSubstr("name it in through_autograd")));
}

TEST_P(WeightGradientsTest, ADifferentiationOfNamedTensorsLeavesNone) {
  const Pair<TransformerNet> nets;
  const at::Tensor x = randn({2, 8, 32}, 2).requires_grad_();
  GraphedCallable graphed = make_graphed_callable(nets.graphed, {x}, {.delay_weight_gradients = true});
  (void)torch::autograd::grad({graphed(x).sum()}, {x});
  EXPECT_FALSE(graphed.backward_weights());
  for (const at::Tensor& parameter : nets.graphed->parameters()) EXPECT_FALSE(parameter.grad().defined());
}

}  // namespace
}  // namespace pianola::weight_gradients_test

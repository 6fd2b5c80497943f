#include <pianola/callable/graphed_callable.hpp>
#include <pianola/core/error.hpp>

#include <pianola/callable/testing/twins.hpp>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

namespace pianola::slots_test {
namespace {

using ::testing::AllOf;
using testing::expect_same;
using ::testing::HasSubstr;
using testing::refusal;
using testing::same;
using testing::TransformerNet;

class SlotsTest : public testing::CallableTest {
 protected:
  static at::Tensor input(std::uint64_t seed) { return randn({2, 8, 32}, seed).requires_grad_(); }

  struct Call {
    at::Tensor input;
    at::Tensor output;
  };
};
PIANOLA_ON_EVERY_DEVICE(SlotsTest);

// Every order of three backwards, with dropout in the activations.
TEST_P(SlotsTest, BackwardsMayRunInAnyOrder) {
  const auto eager = make_net<TransformerNet>(), net = make_net<TransformerNet>();
  GraphedCallable graphed = make_graphed_callable(net, {input(1)}, {.slots = 3});
  std::vector<std::size_t> order = {0, 1, 2};
  do {
    const auto run = [&](auto&& forward) {
      seed(4);
      std::vector<Call> calls;
      for (std::uint64_t i = 0; i < 3; ++i) {
        const at::Tensor x = input(i);
        calls.push_back({.input = x, .output = forward(x)});
      }
      for (const std::size_t i : order) (calls[i].output * calls[i].output).mean().backward();
      return calls;
    };
    const auto expected = run([&](const at::Tensor& x) { return eager->forward(x); });
    const auto actual = run([&](const at::Tensor& x) { return graphed(x); });
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(same(actual[i].output, expected[i].output)) << i;
      EXPECT_TRUE(same(actual[i].input.grad(), expected[i].input.grad())) << i;
    }
    expect_same(state_of_module(*net), state_of_module(*eager), "after all backwards");
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_P(SlotsTest, ACallWithoutAFreeSlotIsRefusedWithTheCountInFlight) {
  const auto net = make_net<TransformerNet>();
  GraphedCallable graphed = make_graphed_callable(net, {input(1)}, {.slots = 2});
  const at::Tensor a = graphed(input(1)), b = graphed(input(2));
  EXPECT_EQ(graphed.in_flight(), 2);
  const at::Tensor b_before = b.clone();
  const std::string message = refusal<UsageError>("no free slot", [&] { (void)graphed(input(3)); });
  EXPECT_THAT(message, AllOf(HasSubstr("2 of 2 calls are in flight"), HasSubstr("CallableOptions::slots")));
  EXPECT_TRUE(same(b, b_before));
  a.sum().backward();
  EXPECT_EQ(graphed.in_flight(), 1);
  const at::Tensor c = graphed(input(3));
  EXPECT_TRUE(same(b, b_before));
  b.sum().backward();
  c.sum().backward();
  EXPECT_EQ(graphed.in_flight(), 0);
}

TEST_P(SlotsTest, AnOutputThatIsLetGoFreesItsSlot) {
  const auto net = make_net<TransformerNet>();
  GraphedCallable graphed = make_graphed_callable(net, {input(1)});
  {
    const at::Tensor forgotten = graphed(input(1));
    EXPECT_EQ(graphed.in_flight(), 1);
  }
  EXPECT_EQ(graphed.in_flight(), 0);
  at::Tensor loss;
  for (std::uint64_t i = 0; i < 3; ++i) {
    loss = graphed(input(i)).sum();
    loss.backward();  // and `loss` of the last step is still there in the next one
  }
}

TEST_P(SlotsTest, AnOutputOutlivesTheCallable) {
  const auto eager = make_net<TransformerNet>(), net = make_net<TransformerNet>();
  seed(4);
  const at::Tensor expected = eager->forward(input(1));
  expected.sum().backward();
  at::Tensor output;
  {
    GraphedCallable graphed = make_graphed_callable(net, {input(1)});
    seed(4);
    output = graphed(input(1));
  }
  EXPECT_TRUE(same(output, expected));
  output.sum().backward();
  expect_same(state_of_module(*net), state_of_module(*eager));
}

TEST_P(SlotsTest, ABackwardAfterResetIsRefused) {
  const auto net = make_net<TransformerNet>();
  GraphedCallable graphed = make_graphed_callable(net, {input(1)});
  const at::Tensor output = graphed(input(1));
  graphed.reset();
  EXPECT_THAT(refusal<UsageError>("backward after reset", [&] { output.sum().backward(); }), HasSubstr("was reset"));
  EXPECT_THAT(refusal<UsageError>("call after reset", [&] { (void)graphed(input(1)); }), HasSubstr("was reset"));
  EXPECT_FALSE(net->norm1->weight.grad().defined());
}

// Static inputs and activations come with each slot; scratch, output gradients and parameter gradients do not.
TEST_P(SlotsTest, ShareWhatTheyCan) {
  const auto net = make_net<TransformerNet>();
  const auto bytes = [&](int slots) {
    const CallableInfo info = make_graphed_callable(net, {input(1)}, {.slots = slots}).info();
    EXPECT_EQ(info.graphs, 2U * static_cast<unsigned>(slots));
    EXPECT_EQ(info.slots, static_cast<unsigned>(slots));
    return info.static_bytes;
  };
  const std::size_t one_input = input(1).nbytes();
  EXPECT_EQ(bytes(3) - bytes(1), 2 * one_input);
}

TEST_P(SlotsTest, SeveralCallablesOfOneCallRunInAnyOrderToo) {
  const auto eager_a = make_net<TransformerNet>(), eager_b = make_net<TransformerNet>();
  const auto a = make_net<TransformerNet>(), b = make_net<TransformerNet>();
  for (const auto& net : {eager_a, eager_b, a, b}) net->dropout->options.p(0.0);
  for (const auto& net : {eager_a, eager_b, a, b}) net->eval();
  auto graphed = make_graphed_callables({a, b}, {{input(1)}, {input(1)}});
  for (const bool first_one_first : {true, false}) {
    const at::Tensor x = input(1), y = input(2), u = input(1), v = input(2);
    const at::Tensor ea = eager_a->forward(x), eb = eager_b->forward(y);
    const at::Tensor ga = graphed[0](u), gb = graphed[1](v);
    const auto backward = [](const at::Tensor& out) { (out * out).mean().backward(); };
    backward(ea);
    backward(eb);
    backward(first_one_first ? ga : gb);
    backward(first_one_first ? gb : ga);
    EXPECT_TRUE(same(u.grad(), x.grad()));
    EXPECT_TRUE(same(v.grad(), y.grad()));
    expect_same(state_of_module(*a), state_of_module(*eager_a));
    expect_same(state_of_module(*b), state_of_module(*eager_b));
  }
}

TEST_P(SlotsTest, ACallMayTakeTheSlotOfTheOldestWhoseBackwardIsThenRefused) {
  const auto eager = make_net<TransformerNet>(), net = make_net<TransformerNet>();
  for (const auto& one : {eager, net}) one->eval();
  GraphedCallable graphed = make_graphed_callable(net, {input(1)}, {.slots = 2, .on_full = OnFull::overtake});
  const at::Tensor oldest = graphed(input(1)), kept = graphed(input(2)), latest = graphed(input(3));
  EXPECT_EQ(graphed.in_flight(), 2);
  EXPECT_THAT(refusal<UsageError>("backward of a call that lost its slot", [&] { oldest.sum().backward(); }),
              HasSubstr("whose slot a later call has taken"));
  const auto backward = [](const at::Tensor& out) { (out * out).mean().backward(); };
  backward(kept);
  backward(latest);
  for (const int seed : {2, 3}) backward(eager->forward(input(seed)));
  expect_same(state_of_module(*net), state_of_module(*eager));
  EXPECT_EQ(graphed.in_flight(), 0);
}

}  // namespace
}  // namespace pianola::slots_test

// Steps that hand on a gradient that they found, with no operation on it: a graph knows the one of its capture alone.
#include <pianola/callable/testing/graphed_fixture.hpp>

#include <cstdint>
#include <functional>
#include <memory>

namespace pianola::found_gradients_test {
namespace {

using testing::MlpNet;
using testing::same;

class FoundGradientsTest : public testing::GraphedTest {
 protected:
  // The second one is trained.
  struct Pair {
    std::shared_ptr<MlpNet> other = make_net<MlpNet>(), net = make_net<MlpNet>();
    [[nodiscard]] at::Tensor given() const { return other->first->weight; }
    [[nodiscard]] at::Tensor trained() const { return net->first->weight; }
  };
  using Step = std::function<at::Tensor(const at::Tensor&)>;

  static void train(const Pair& pair, const at::Tensor& x) {
    pair.net->zero_grad();
    square(pair.net->forward(pair.other->forward(x).detach())).backward();
  }

  // Each call finds another gradient of the first network, which nobody keeps.
  void expect_equals_eager(const std::function<Step(const Pair&)>& make) {
    const Pair eager, graphs;
    const Step expected = make(eager);
    Graphed graphed = pianola::graphed(make(graphs), logged({.warmup = 1}));
    for (std::uint64_t i = 0; i < 8; ++i) {
      for (const Pair* const pair : {&eager, &graphs}) {
        pair->given().mutable_grad() = randn(pair->given().sizes(), 100 + i);
      }
      EXPECT_TRUE(same(graphed(batch(i)), expected(batch(i)))) << "the result of call " << i;
      EXPECT_TRUE(same(graphs.given().grad(), eager.given().grad())) << "call " << i;
      EXPECT_TRUE(same(graphs.trained().grad(), eager.trained().grad())) << "call " << i;
    }
  }
};
PIANOLA_ON_EVERY_DEVICE(FoundGradientsTest);

TEST_P(FoundGradientsTest, AreReturnedAsEachCallFindsThem) {
  expect_equals_eager([](const Pair& pair) -> Step {
    return [pair](const at::Tensor& x) {
      train(pair, x);
      return pair.given().grad();
    };
  });
}

TEST_P(FoundGradientsTest, AreReturnedInPartAsEachCallFindsThem) {
  expect_equals_eager([](const Pair& pair) -> Step {
    return [pair](const at::Tensor& x) {
      train(pair, x);
      return pair.given().grad().detach()[1];
    };
  });
}

TEST_P(FoundGradientsTest, AreGivenToAnotherParameterAsEachCallFindsThem) {
  expect_equals_eager([](const Pair& pair) -> Step {
    return [pair](const at::Tensor& x) {
      train(pair, x);
      pair.trained().mutable_grad() = pair.given().grad();
      return x.sum();
    };
  });
}

TEST_P(FoundGradientsTest, OfTheCallBeforeAreReturnedBeforeTheyAreDropped) {
  expect_equals_eager([](const Pair& pair) -> Step {
    return [pair](const at::Tensor& x) {
      const at::Tensor before = pair.trained().grad();
      train(pair, x);
      return before.defined() ? before : x.sum();
    };
  });
}

// What the host asks, no operation shows.
TEST_P(FoundGradientsTest, DecideByBeingThere) {
  const Pair eager, graphs;
  const auto make = [](const Pair& pair) -> Step {
    return [pair](const at::Tensor& x) {
      train(pair, x);
      return pair.given().grad().defined() ? x * 2 : x * 3;
    };
  };
  const Step expected = make(eager);
  Graphed graphed = pianola::graphed(make(graphs), logged({.warmup = 1}));
  for (std::uint64_t i = 0; i < 12; ++i) {
    for (const Pair* const pair : {&eager, &graphs}) {
      pair->given().mutable_grad() = i % 6 < 4 ? randn(pair->given().sizes(), 100 + i) : at::Tensor();
    }
    EXPECT_TRUE(same(graphed(batch(i)), expected(batch(i)))) << "call " << i;
  }
  EXPECT_GT(replays(graphed), 6U);
}

TEST_P(FoundGradientsTest, DecideByBeingThereWhereTheStepDropsThem) {
  const auto net = make_net<MlpNet>(), eager_net = make_net<MlpNet>();
  const auto make = [](const std::shared_ptr<MlpNet>& trained) -> Step {
    return [trained](const at::Tensor& x) {
      const bool is_fresh = !trained->first->weight.grad().defined();
      trained->zero_grad();
      const at::Tensor loss = square(trained->forward(x)) * (is_fresh ? 100 : 1);
      loss.backward();
      return loss.detach();
    };
  };
  const Step expected = make(eager_net);
  Graphed graphed = pianola::graphed(make(net), logged({}));
  for (std::uint64_t i = 0; i < 16; ++i) {
    if (i == 8) net->zero_grad(), eager_net->zero_grad();
    EXPECT_TRUE(same(graphed(batch(i)), expected(batch(i)))) << "the result of call " << i;
    EXPECT_TRUE(same(net->first->weight.grad(), eager_net->first->weight.grad())) << "call " << i;
  }
  EXPECT_GT(replays(graphed), 8U);
}

}  // namespace
}  // namespace pianola::found_gradients_test

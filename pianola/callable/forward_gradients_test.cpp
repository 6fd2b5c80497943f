// Functions that change gradients, and whose backward pass runs outside of them: no operation shows it.
#include <pianola/callable/testing/graphed_fixture.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace pianola::forward_gradients_test {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using testing::MlpNet;
using testing::same;

class ForwardGradientsTest : public testing::GraphedTest {
 protected:
  using Function = std::function<at::Tensor(const at::Tensor&)>;
  using Make = std::function<Function(const std::shared_ptr<MlpNet>&)>;

  // @param after  What the caller does with the result of each call.
  void expect_equals_eager(const Make& make,
                           const std::function<void(MlpNet&, const at::Tensor&, std::uint64_t)>& after) {
    const auto net = make_net<MlpNet>(), eager_net = make_net<MlpNet>();
    const Function eager = make(eager_net);
    Graphed graphed = pianola::graphed(make(net), logged({.warmup = 3}));
    for (std::uint64_t i = 0; i < 10; ++i) {
      const at::Tensor result = graphed(batch(i)), expected = eager(batch(i));
      EXPECT_TRUE(same(result, expected)) << "the result of call " << i;
      after(*net, result, i);
      after(*eager_net, expected, i);
      const auto parameters = net->parameters(), others = eager_net->parameters();
      for (std::size_t p = 0; p < parameters.size(); ++p) {
        const at::Tensor gradient = parameters[p].grad(), other = others[p].grad();
        ASSERT_EQ(gradient.defined(), other.defined()) << "gradient " << p << " behind call " << i;
        EXPECT_TRUE(!other.defined() || same(gradient, other)) << "gradient " << p << " behind call " << i;
      }
    }
    EXPECT_GT(replays(graphed), 3U);
  }

  static Function clearing(const std::shared_ptr<MlpNet>& net) {
    return [net](const at::Tensor& x) {
      net->zero_grad();
      return square(net->forward(x));
    };
  }
};
PIANOLA_ON_EVERY_DEVICE(ForwardGradientsTest);

TEST_P(ForwardGradientsTest, AreDroppedBeforeABackwardPassOutside) {
  expect_equals_eager(clearing, [](MlpNet&, const at::Tensor& loss, std::uint64_t) { loss.backward(); });
}

TEST_P(ForwardGradientsTest, AreDroppedWhereAReplayFindsNone) {
  expect_equals_eager(clearing, [](MlpNet&, const at::Tensor& loss, std::uint64_t call) {
    if (call != 6) loss.backward();
  });
}

// What the first call behind it shows is too little: what those before it have shown counts.
TEST_P(ForwardGradientsTest, AreDroppedByTheGraphThatFollowsAStaleOne) {
  expect_equals_eager(clearing, [](MlpNet& net, const at::Tensor& loss, std::uint64_t call) {
    loss.backward();
    if (call == 5) net.first->weight.set_data(net.first->weight.clone().detach());
  });
}

TEST_P(ForwardGradientsTest, AreLeftAloneByAFunctionThatDoesNotTouchThem) {
  const Make make = [](const std::shared_ptr<MlpNet>& net) -> Function {
    return [net](const at::Tensor& x) { return square(net->forward(x)); };
  };
  expect_equals_eager(make, [](MlpNet& net, const at::Tensor& loss, std::uint64_t call) {
    loss.backward();
    if (call % 3 == 2) net.zero_grad();
  });
}

TEST_P(ForwardGradientsTest, ThatAFunctionSetsKeepItEager) {
  const auto net = make_net<MlpNet>();
  const at::Tensor weight = net->first->weight;
  at::Tensor given;
  Graphed graphed = pianola::graphed(
      [&](const at::Tensor& x) {
        weight.mutable_grad() = given;
        return square(net->forward(x));
      },
      logged());
  for (std::uint64_t i = 0; i < 8; ++i) {
    given = randn(weight.sizes(), i);
    (void)graphed(batch(i));
    EXPECT_TRUE(weight.grad().is_same(given)) << "call " << i;
  }
  EXPECT_THAT(reasons, Contains(HasSubstr("the function sets the gradient of a Float tensor")));
}

}  // namespace
}  // namespace pianola::forward_gradients_test

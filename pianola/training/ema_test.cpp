#include <pianola/training/ema.hpp>

#include <pianola/training/testing/optimizer_fixture.hpp>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/ones.h>

namespace pianola::ema_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Problem;
using testing::refusal;
using testing::same;

class EmaTest : public testing::OptimizerTest {
 protected:
  // Floats and halves, which no foreach operation takes at once.
  static std::vector<at::Tensor> parameters() {
    std::vector<at::Tensor> all = Problem(device()).parameters;
    all.push_back(randn({4}).to(at::kBFloat16).requires_grad_());
    return all;
  }

  static void move(const std::vector<at::Tensor>& parameters, std::uint64_t seed) {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& parameter : parameters) parameter.add_(randn(parameter.sizes(), seed));
  }
};
PIANOLA_ON_EVERY_DEVICE(EmaTest);

TEST_P(EmaTest, MovesTowardsTheParameters) {
  const std::vector<at::Tensor> all = parameters();
  std::vector<at::Tensor> expected;
  for (const at::Tensor& parameter : all) expected.push_back(parameter.detach().clone());
  ExponentialMovingAverage averages(all, 0.9);
  for (std::uint64_t step = 0; step < 5; ++step) {
    move(all, step);
    averages.update();
    for (std::size_t i = 0; i < all.size(); ++i) {
      expected[i] = at::lerp(expected[i], all[i].detach(), 1 - 0.9);
      EXPECT_TRUE(same(averages.averages()[i], expected[i])) << step;
    }
  }
}

TEST_P(EmaTest, CapturedEqualsEager) {
  const std::vector<at::Tensor> one = parameters(), other = parameters();
  ExponentialMovingAverage eager(one), captured(other);
  Graph graph(device());
  graph.capture([&] { captured.update(); });
  for (std::uint64_t step = 0; step < 4; ++step) {
    move(one, step);
    move(other, step);
    eager.update();
    graph.replay();
    for (std::size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(same(captured.averages()[i], eager.averages()[i]));
  }
}

TEST_P(EmaTest, ExchangesAndCopies) {
  const std::vector<at::Tensor> all = parameters();
  const at::Tensor start = all[0].detach().clone();
  ExponentialMovingAverage averages(all, 0.5);
  move(all, 1);
  const at::Tensor moved = all[0].detach().clone();
  averages.swap();
  EXPECT_TRUE(same(all[0].detach(), start));
  EXPECT_TRUE(same(averages.averages()[0], moved));
  averages.swap();
  EXPECT_TRUE(same(all[0].detach(), moved));
  averages.copy_to_parameters();
  EXPECT_TRUE(same(all[0].detach(), start));
  move(all, 2);
  averages.reset();
  EXPECT_TRUE(same(averages.averages()[0], all[0].detach()));
}

TEST_P(EmaTest, ComesBackFromItsState) {
  const std::vector<at::Tensor> all = parameters();
  ExponentialMovingAverage averages(all), other(parameters());
  move(all, 1);
  averages.update();
  other.load_state_dict(averages.state_dict());
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_TRUE(same(other.averages()[i], averages.averages()[i]));
  EXPECT_EQ(other.state()[4].name, "average.4");
}

TEST_P(EmaTest, NamesWhatIsWrong) {
  EXPECT_THAT(refusal<UsageError>("a decay of 2", [] { ExponentialMovingAverage(parameters(), 2); }),
              HasSubstr("decay must be between 0 and 1, got 2"));
  EXPECT_THAT(refusal<UsageError>("averages of nothing", [] { ExponentialMovingAverage({}); }),
              HasSubstr("no parameters to average"));
  EXPECT_THAT(refusal<UsageError>("averages of integers", [] { ExponentialMovingAverage({at::arange(3, device())}); }),
              AllOf(HasSubstr("parameter 0 must be a floating-point tensor, got Long"), HasSubstr("leave it out")));

  ExponentialMovingAverage averages(parameters(), 0.5);
  const auto refused = [&](const std::string& title, const c10::IValue& state) {
    return refusal<UsageError>(title, [&] { averages.load_state_dict(state); });
  };
  EXPECT_THAT(refused("averages from a number", 3), HasSubstr("it must be a dict; nothing was changed"));
  EXPECT_THAT(refused("averages of another decay", ExponentialMovingAverage(parameters(), 0.9).state_dict()),
              HasSubstr("'decay' is not the 0.5"));
  EXPECT_THAT(refused("averages of fewer", ExponentialMovingAverage({randn({2})}, 0.5).state_dict()),
              HasSubstr("'averages' must be a list of 5 tensors"));
  const c10::IValue state = ExponentialMovingAverage(parameters(), 0.5).state_dict();
  state.toGenericDict().at("averages").toList().set(2, at::ones({7}));
  EXPECT_THAT(refused("averages of another shape", state), HasSubstr("averages[2] does not have the shape"));
  (void)state.toGenericDict().erase("decay");
  EXPECT_THAT(refused("averages without a decay", state), HasSubstr("it lacks 'decay'"));
}

}  // namespace
}  // namespace pianola::ema_test

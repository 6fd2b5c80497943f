#include <pianola/training/clip_grad.hpp>

#include <pianola/graph/testing/device_test.hpp>
#include <pianola/training/finite_watch.hpp>
#include <pianola/training/testing/plain_sgd.hpp>

#include <ATen/ops/cat.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace pianola::clip_grad_test {
namespace {

using ::testing::AllOf;
using testing::expect_same;
using ::testing::HasSubstr;
using testing::NamedTensors;
using testing::refusal;
using testing::same;
using testing::SmallTraining;

constexpr double kInf = std::numeric_limits<double>::infinity();

class ClipGradTest : public testing::DeviceTest {
 protected:
  static at::Tensor parameter(at::IntArrayRef sizes, std::uint64_t seed, at::ScalarType dtype = at::kFloat) {
    const at::Tensor made = randn(sizes, seed).to(dtype).requires_grad_();
    made.mutable_grad() = randn(sizes, seed + 100).to(dtype);
    return made;
  }
  static std::vector<at::Tensor> parameters() {
    return {parameter({4, 3}, 1), parameter({5}, 2), parameter({2, 2, 2}, 3)};
  }
  static at::Tensor all_gradients(const std::vector<at::Tensor>& of) {
    std::vector<at::Tensor> flat;
    for (const at::Tensor& one : of) flat.push_back(one.grad().to(at::kDouble).flatten());
    return at::cat(flat);
  }
};
PIANOLA_ON_EVERY_DEVICE(ClipGradTest);

// Bit equality with torch's function is for the Python test, which has it.
TEST_P(ClipGradTest, BringsTheNormOfAllGradientsDownToTheLargestAllowed) {
  for (const double norm_type : {1.0, 2.0, 3.0, kInf}) {
    const std::vector<at::Tensor> given = parameters();
    const at::Tensor before = all_gradients(given);
    const at::Tensor total = clip_grad_norm_(given, 0.5, {.norm_type = norm_type});
    EXPECT_EQ(total.dim(), 0);
    EXPECT_EQ(total.scalar_type(), at::kFloat);
    const double expected = before.norm(norm_type).item<double>();
    EXPECT_NEAR(total.item<double>(), expected, 1e-5 * expected);
    EXPECT_NEAR(all_gradients(given).norm(norm_type).item<double>(), 0.5, 1e-5);
  }
}

TEST_P(ClipGradTest, LeavesSmallGradientsBitForBit) {
  const std::vector<at::Tensor> given = parameters();
  const at::Tensor before = all_gradients(given);
  clip_grad_norm_(given, 1e4);
  EXPECT_TRUE(same(all_gradients(given), before));
}

TEST_P(ClipGradTest, TakesGradientsOfSeveralDtypesAndLeavesOutWhatHasNone) {
  std::vector<at::Tensor> given = {parameter({4}, 1), parameter({4}, 2, at::kBFloat16), randn({3}).requires_grad_(),
                                   parameter({2}, 3, at::kDouble)};
  clip_grad_norm_(given, 0.1);
  EXPECT_FALSE(given[2].grad().defined());
  given.erase(given.begin() + 2);
  EXPECT_NEAR(all_gradients(given).norm().item<double>(), 0.1, 1e-3);
}

TEST_P(ClipGradTest, GivesTheSameForParametersGradientsAndAnOptimizer) {
  const std::vector<at::Tensor> one = parameters(), other = parameters(), third = parameters();
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : other) gradients.push_back(parameter.grad());
  const testing::PlainSgd optimizer(third);
  const at::Tensor total = clip_grad_norm_(one, 0.3);
  EXPECT_TRUE(same(clip_gradients_norm_(gradients, 0.3), total));
  EXPECT_TRUE(same(clip_grad_norm_(optimizer, 0.3), total));
  EXPECT_TRUE(same(all_gradients(other), all_gradients(one)));
  EXPECT_TRUE(same(all_gradients(third), all_gradients(one)));
}

TEST_P(ClipGradTest, OfNothingIsZero) {
  const std::vector<at::Tensor> none, bare = {randn({3}).requires_grad_()};
  EXPECT_EQ(clip_grad_norm_(none, 1).item<float>(), 0);
  EXPECT_EQ(clip_grad_norm_(bare, 1).item<float>(), 0);
  EXPECT_EQ(clip_gradients_norm_(none, 1).item<float>(), 0);
  clip_grad_value_(none, 1);
}

TEST_P(ClipGradTest, ClampsEachElement) {
  const std::vector<at::Tensor> given = parameters();
  const at::Tensor before = all_gradients(given);
  clip_grad_value_(given, 0.25);
  EXPECT_TRUE(same(all_gradients(given), before.clamp(-0.25, 0.25)));
}

TEST_P(ClipGradTest, EqualsEagerInACapturedStep) {
  for (const double norm_type : {2.0, kInf}) {
    SmallTraining eager(device()), graphed(device());
    at::Tensor eager_norm, graphed_norm;
    const auto step = [&](SmallTraining& training, at::Tensor& norm) {
      training.optimizer.zero_grad();
      training.backward(training.forward());
      norm = clip_grad_norm_(training.optimizer, 0.5, {.norm_type = norm_type});
      clip_grad_value_(training.optimizer, 0.2);
      training.optimizer.step();
    };
    Graph graph(device());
    graph.capture([&] { step(graphed, graphed_norm); });
    for (int i = 0; i < 4; ++i) {
      eager.feed(i, 1 + i);
      graphed.feed(i, 1 + i);
      step(eager, eager_norm);
      graph.replay();
      expect_same(graphed.everything(), eager.everything(), "in step " + std::to_string(i));
      EXPECT_TRUE(same(graphed_norm, eager_norm)) << "in step " << i;
    }
  }
}

TEST_P(ClipGradTest, TellsTheWatchWhichNormIsNotFinite) {
  FiniteWatch watch(device());
  const std::vector<at::Tensor> given = parameters();
  given[1].grad()[2] = kInf;
  clip_grad_norm_(given, 1, {.error_if_nonfinite = &watch, .names = {"a", "b", "c"}});
  watch.end_step();
  EXPECT_THAT(refusal<NonFiniteError>("an infinite norm", [&] { watch.wait(); }),
              AllOf(HasSubstr("'2-norm of the gradient of b' is infinite in step 1"), HasSubstr("norm of all")));
}

TEST_P(ClipGradTest, ANormThatOverflowsIsTold) {
  FiniteWatch watch(device());
  const std::vector<at::Tensor> given = {at::ones({4}, device()).requires_grad_()};
  given[0].mutable_grad() = at::full({4}, 3e38, device());
  clip_grad_norm_(given, 1, {.norm_type = 1, .error_if_nonfinite = &watch});
  watch.end_step();
  EXPECT_THAT(refusal<NonFiniteError>("a norm that overflows", [&] { watch.wait(); }),
              HasSubstr("1-norm of the gradient of parameter 0' is infinite"));
}

TEST_P(ClipGradTest, RefusesWhatItCannotClip) {
  const std::vector<at::Tensor> given = parameters(), undefined = {at::Tensor()}, plain = {randn({2}), randn({3})};
  EXPECT_THAT(refusal<UsageError>("a negative norm", [&] { clip_grad_norm_(given, -1); }),
              HasSubstr("max_norm must be 0 or more, got -1"));
  EXPECT_THAT(refusal<UsageError>("a norm of NaN", [&] { clip_grad_norm_(given, std::nan("")); }),
              HasSubstr("max_norm must be 0 or more, got nan"));
  EXPECT_THAT(refusal<UsageError>("a negative value", [&] { clip_grad_value_(given, -2); }),
              HasSubstr("clip_value must be 0 or more, got -2"));
  EXPECT_THAT(refusal<UsageError>("an undefined parameter", [&] { clip_grad_norm_(undefined, 1); }),
              HasSubstr("parameter 0 of clip_grad_norm_() is undefined"));
  EXPECT_THAT(refusal<UsageError>("an undefined gradient", [&] { clip_gradients_norm_(undefined, 1); }),
              HasSubstr("gradient 0 of clip_gradients_norm_() is undefined"));
  EXPECT_THAT(refusal<UsageError>("gradients for parameters", [&] { clip_grad_norm_(plain, 1); }),
              AllOf(HasSubstr("none of the 2 tensors of clip_grad_norm_() requires a gradient"),
                    HasSubstr("clip_gradients_norm_()")));
  EXPECT_THAT(refusal<UsageError>("parameters for gradients", [&] { clip_gradients_norm_(given, 1); }),
              AllOf(HasSubstr("tensor 0 of clip_gradients_norm_() is a parameter"), HasSubstr("clip_grad_norm_()")));
  EXPECT_THAT(refusal<UsageError>("too few names", [&] { clip_grad_norm_(given, 1, {.names = {"one"}}); }),
              HasSubstr("has 1 names for 3 tensors"));
}

}  // namespace
}  // namespace pianola::clip_grad_test

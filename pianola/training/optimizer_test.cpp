#include <pianola/training/optimizer.hpp>

#include <pianola/training/adam.hpp>
#include <pianola/training/sgd.hpp>
#include <pianola/training/testing/optimizer_fixture.hpp>

#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <limits>
#include <memory>

namespace pianola::optimizer_test {
namespace {

using ::testing::AllOf;
using testing::expect_same;
using ::testing::HasSubstr;
using testing::Problem;
using testing::refusal;
using testing::same;

class OptimizerBaseTest : public testing::OptimizerTest {
 protected:
  static at::Tensor leaf(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
    return randn(sizes).to(dtype).requires_grad_();
  }
};
PIANOLA_ON_EVERY_DEVICE(OptimizerBaseTest);

TEST_P(OptimizerBaseTest, KnowsItsGroupsParametersAndRates) {
  const at::Tensor a = leaf({2}), b = leaf({3});
  SGD sgd({{{a}, {.lr = 0.5}}, {{b}, {.lr = 0.25}}});
  EXPECT_EQ(sgd.groups(), 2U);
  EXPECT_TRUE(sgd.parameters(1)[0].is_same(b));
  EXPECT_EQ(sgd.parameters().size(), 2U);
  EXPECT_EQ(sgd.learning_rate(1).item<float>(), 0.25F);
  EXPECT_EQ(sgd.learning_rate(1).scalar_type(), at::kFloat);
  sgd.set_learning_rate(0.125);
  EXPECT_EQ(sgd.learning_rate(0).item<float>(), 0.125F);
  sgd.set_learning_rate(2, 1);
  EXPECT_EQ(sgd.learning_rate(0).item<float>(), 0.125F);
  EXPECT_EQ(sgd.learning_rate(1).item<float>(), 2.0F);
}

TEST_P(OptimizerBaseTest, ClearsGradients) {
  Problem problem(device());
  SGD sgd(problem.parameters);
  problem.backward(/*without=*/2);
  EXPECT_EQ(sgd.gradients().size(), 3U);
  const at::Tensor gradient = problem.parameters[0].grad();
  sgd.zero_grad(/*set_to_none=*/false);
  EXPECT_TRUE(problem.parameters[0].grad().is_same(gradient));
  EXPECT_TRUE(same(gradient, at::zeros_like(gradient)));
  sgd.zero_grad();
  EXPECT_TRUE(sgd.gradients().empty());
}

TEST_P(OptimizerBaseTest, NamesWhatIsWrongWithParameters) {
  const at::Tensor a = leaf({2}), b = leaf({2});
  EXPECT_THAT(refusal<UsageError>("no groups", [] { SGD(std::vector<ParameterGroup<SGDOptions>>{}); }),
              HasSubstr("number of groups must be 1 or more, got 0"));
  EXPECT_THAT(refusal<UsageError>("an empty group",
                                  [&] {
                                    SGD(std::vector<ParameterGroup<SGDOptions>>{{{a}, {}}, {{}, {}}});
                                  }),
              HasSubstr("group 1 has no parameters"));
  EXPECT_THAT(refusal<UsageError>("a parameter twice",
                                  [&] {
                                    SGD({{{a}, {}}, {{b, a}, {}}});
                                  }),
              AllOf(HasSubstr("parameter 1 of group 1 was listed before"), HasSubstr("fix:")));
  EXPECT_THAT(refusal<UsageError>("a computed parameter",
                                  [&] {
                                    SGD(std::vector<at::Tensor>{a, a * 2});
                                  }),
              AllOf(HasSubstr("parameter 1 of group 0 is not a leaf"), HasSubstr("detach")));
  EXPECT_THAT(
      refusal<UsageError>("an integer parameter", [&] { SGD(std::vector<at::Tensor>{at::arange(3, device())}); }),
      AllOf(HasSubstr("float32, float64, float16 or bfloat16"), HasSubstr("got Long")));
  EXPECT_THAT(refusal<UsageError>("an undefined parameter", [&] { SGD(std::vector<at::Tensor>{at::Tensor()}); }),
              HasSubstr("parameter 0 of group 0 is undefined"));
  EXPECT_THAT(refusal<UsageError>("a parameter on meta",
                                  [&] { SGD(std::vector<at::Tensor>{at::zeros({2}, c10::Device("meta"))}); }),
              HasSubstr("must be on a CUDA device or the CPU, got meta"));
  if (!on_cuda()) return;
  EXPECT_THAT(refusal<UsageError>("two devices",
                                  [&] {
                                    SGD(std::vector<at::Tensor>{a, at::zeros({2})});
                                  }),
              HasSubstr("is on cpu, the first one on cuda:0"));
}

TEST_P(OptimizerBaseTest, NamesWhatIsWrongWithRatesAndGroups) {
  SGD sgd(std::vector<at::Tensor>{leaf({2})});
  EXPECT_THAT(refusal<UsageError>("a negative rate", [&] { sgd.set_learning_rate(-1); }),
              HasSubstr("a learning rate must be finite and 0 or more, got -1"));
  EXPECT_THAT(refusal<UsageError>(
                  "a rate without end",
                  [&] { SGD(std::vector<at::Tensor>{leaf({2})}, {.lr = std::numeric_limits<double>::infinity()}); }),
              HasSubstr("got inf"));
  EXPECT_THAT(refusal<UsageError>("a group too far", [&] { (void)sgd.learning_rate(1); }),
              HasSubstr("there is no group 1: the optimizer has 1"));
}

TEST_P(OptimizerBaseTest, NamesWhatIsWrongWithAGradScale) {
  SGD sgd(std::vector<at::Tensor>{leaf({2})});
  EXPECT_THAT(refusal<UsageError>("a found_inf of two", [&] { sgd.step({.found_inf = at::zeros({2}, device())}); }),
              AllOf(HasSubstr("GradScale::found_inf must be one float32 element on"), HasSubstr("got 2 of Float")));
  EXPECT_THAT(
      refusal<UsageError>("a double scale",
                          [&] { sgd.step({.scale = at::ones({1}, at::TensorOptions(at::kDouble).device(device()))}); }),
      AllOf(HasSubstr("GradScale::scale"), HasSubstr("got 1 of Double")));
}

TEST_P(OptimizerBaseTest, NamesWhatIsWrongWithGradients) {
  const at::Tensor a = leaf({4, 2}), b = leaf({4, 2});
  SGD sgd({a, b}, {.momentum = 0.9});
  a.mutable_grad() = at::ones({4, 2}, device());
  b.mutable_grad() = at::_sparse_coo_tensor_unsafe(at::zeros({1, 1}, at::TensorOptions(at::kLong).device(device())),
                                                   at::ones({1, 2}, device()), {4, 2});
  const at::Tensor before = a.detach().clone();
  EXPECT_THAT(refusal<UsageError>("a sparse gradient", [&] { sgd.step(); }),
              AllOf(HasSubstr("the gradient of parameter 1 of group 0 is sparse"), HasSubstr("fix:")));
  EXPECT_TRUE(same(a, before));
  b.mutable_grad().reset();
  sgd.step();  // after a refusal as before
  EXPECT_FALSE(same(a, before));
}

TEST_P(OptimizerBaseTest, NamesAParameterThatWasConverted) {
  const at::Tensor a = leaf({3});
  Adam adam(std::vector<at::Tensor>{a});
  a.set_data(a.detach().to(at::kDouble));
  a.mutable_grad() = at::ones({3}, a.options().requires_grad(false));
  EXPECT_THAT(refusal<UsageError>("a converted parameter", [&] { adam.step(); }),
              AllOf(HasSubstr("parameter 0 of group 0 has become Double [3] on"), HasSubstr("its state is Float [3]"),
                    HasSubstr("convert and move a model before")));
}

// Whatever the layout of parameters and gradients: the numbers are those of dense ones.
TEST_P(OptimizerBaseTest, TakesEveryLayout) {
  for (const bool adam : {false, true}) {
    const auto make = [&](std::vector<at::Tensor> parameters) -> std::unique_ptr<Optimizer> {
      if (adam) return std::make_unique<AdamW>(std::move(parameters));
      return std::make_unique<SGD>(std::move(parameters), SGDOptions{.lr = 0.1});
    };
    const at::Tensor values = randn({3, 4});
    const at::Tensor dense = values.clone().requires_grad_();
    const at::Tensor transposed = values.t().contiguous().t().requires_grad_();
    const at::Tensor spread = at::empty_strided({3, 4}, {16, 2}, values.options()).copy_(values).requires_grad_();
    const auto reference = make({dense}), tested = make({transposed, spread});
    for (int step = 0; step < 3; ++step) {
      const at::Tensor gradient = randn({3, 4}, static_cast<std::uint64_t>(step));
      dense.mutable_grad() = gradient.clone();
      transposed.mutable_grad() = gradient.clone();
      spread.mutable_grad() = gradient.t().contiguous().t();
      const GradScale scale{.scale = flag(4), .found_inf = flag(0)};
      reference->step(scale);
      tested->step(scale);
      EXPECT_TRUE(same(transposed, dense)) << step;
      EXPECT_TRUE(same(spread, dense)) << step;
      EXPECT_TRUE(same(spread.grad(), dense.grad())) << "unscaled in place";
    }
  }
}

TEST_P(OptimizerBaseTest, LetsGoOfGradients) {
  Problem problem(device());
  AdamW adam(problem.parameters);
  problem.backward();
  const at::Tensor gradient = problem.parameters[0].grad();
  adam.step();
  adam.zero_grad();
  EXPECT_EQ(gradient.use_count(), 1U);
}

TEST_P(OptimizerBaseTest, MarksParametersAsWritten) {
  Problem problem(device());
  SGD sgd(problem.parameters);
  problem.backward();
  const auto before = problem.parameters[0]._version();
  sgd.step();
  EXPECT_GT(problem.parameters[0]._version(), before);
}

}  // namespace
}  // namespace pianola::optimizer_test

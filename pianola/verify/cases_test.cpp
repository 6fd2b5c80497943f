#include <pianola/graph/testing/ops_case.hpp>
#include <pianola/verify/testing/verify_test.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cos.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <iterator>
#include <string>
#include <vector>

namespace pianola::testing::cases_test {
namespace {

using ::testing::HasSubstr;

// Each operation on its own, with its backward: a graph of it is equal to eager, and where something else is wrong, the
// operation is not blamed, since a capture of it agrees with eager.
class CasesTest : public VerifyTest {
 protected:
  void SetUp() override {
    VerifyTest::SetUp();
    at::globalContext().setDeterministicAlgorithms(on_cuda(), /*warn_only=*/true);
    at::globalContext().setDeterministicFillUninitializedMemory(false);
  }
  void TearDown() override {
    at::globalContext().setDeterministicAlgorithms(false, false);
    VerifyTest::TearDown();
  }

  static Inputs make() {
    std::uint64_t seed = 0;
    const auto leaf = [&](at::IntArrayRef sizes) { return randn(sizes, ++seed).requires_grad_(); };
    Inputs in;
    for (at::Tensor* tensor : {&in.x, &in.y}) *tensor = leaf({4, 8});
    in.w = leaf({8, 8});
    in.v = leaf({8});
    in.image = leaf({2, 4, 6, 6});
    in.kernel = leaf({4, 4, 3, 3});
    in.sequence = leaf({2, 4, 8});
    in.labels = randint(8, {4}, ++seed);
    in.index = randint(4, {4, 8}, ++seed);
    in.mask = randint(2, {4, 8}, ++seed).to(at::kBool);
    in.buffer = randn({4, 8}, ++seed);
    in.statistic = randn({4}, ++seed).abs() + 0.1;
    return in;
  }

  static Tensors run_with_gradients(const OpsCase& tested, const Inputs& in) {
    Tensors results = tested.run(in), differentiable, weights;
    std::ranges::copy_if(results, std::back_inserter(differentiable),
                         [](const at::Tensor& result) { return result.requires_grad() && result.numel() > 0; });
    for (const at::Tensor& result : differentiable) weights.push_back(at::cos(result.detach()));
    if (differentiable.empty()) return results;
    const Tensors gradients =
        torch::autograd::grad(differentiable, {in.x, in.y, in.w, in.v, in.image, in.kernel, in.sequence}, weights,
                              /*retain_graph=*/{}, /*create_graph=*/false, /*allow_unused=*/true);
    results.insert(results.end(), gradients.begin(), gradients.end());
    return results;
  }

  static void expect_equal_and_not_blamed(const OpsCase& tested) {
    const Inputs in = make();
    const std::vector<NamedTensor> state = {
        {"x", in.x}, {"y", in.y}, {"w", in.w}, {"buffer", in.buffer}, {"statistic", in.statistic}};
    const VerifyStep eager = [&](const Tensors&) { return run_with_gradients(tested, in); };
    Graph graph(device());
    Tensors results;
    graph.capture([&] { results = run_with_gradients(tested, in); });
    const VerifyStep graphed = [&](const Tensors&) {
      graph.replay();
      return results;
    };
    const VerifyReport equal = verify(eager, graphed, state, {.steps = 3});
    EXPECT_EQ(equal.verdict, Verdict::equal) << equal.to_text();

    const VerifyStep with_one_more = [&](const Tensors&) {
      Tensors more = run_with_gradients(tested, in);
      more.push_back(in.labels);
      return more;
    };
    const VerifyReport differs = verify(eager, with_one_more, state, {.steps = 1});
    EXPECT_EQ(differs.verdict, Verdict::differs) << differs.to_text();
    EXPECT_FALSE(differs.origin) << differs.to_text();
    EXPECT_THAT(differs.to_text(), HasSubstr("a capture of eager computes what eager does, operation by operation"));
  }

  static void expect_all(const std::vector<OpsCase>& cases) {
    for (const OpsCase& tested : cases) {
      SCOPED_TRACE(tested.name);
      try {
        expect_equal_and_not_blamed(tested);
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
      }
    }
  }
};
PIANOLA_ON_EVERY_DEVICE(CasesTest);

TEST_P(CasesTest, ArithmeticIsEqualAndNotBlamed) { expect_all(arithmetic_cases()); }
TEST_P(CasesTest, LayersAreEqualAndNotBlamed) { expect_all(layer_cases()); }
TEST_P(CasesTest, ViewsCopiesAndWritesAreEqualAndNotBlamed) { expect_all(memory_cases()); }

}  // namespace
}  // namespace pianola::testing::cases_test

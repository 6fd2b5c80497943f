#include <pianola/graph/graph.hpp>
#include <pianola/graph/testing/device_test.hpp>
#include <pianola/graph/testing/ops_case.hpp>

#include <ATen/ops/cos.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstdint>
#include <exception>
#include <vector>

namespace pianola::testing::tape_ops_test {
namespace {

// Operations one by one, forward and backward, on the tape and on CUDA alike: captured, then replayed on other inputs,
// each result, gradient and buffer equals eager's.
class TapeOpsTest : public DeviceTest {
 protected:
  static Inputs make(std::uint64_t seed) {
    const auto leaf = [&](at::IntArrayRef sizes, std::uint64_t number) {
      return randn(sizes, 100 * seed + number).requires_grad_();
    };
    return {.x = leaf({4, 8}, 1),
            .y = leaf({4, 8}, 2),
            .w = leaf({8, 8}, 3),
            .v = leaf({8}, 4),
            .image = leaf({2, 4, 6, 6}, 5),
            .kernel = leaf({4, 4, 3, 3}, 6),
            .sequence = leaf({2, 4, 8}, 7),
            .labels = randint(8, {4}, 100 * seed + 8),
            .index = randint(4, {4, 8}, 100 * seed + 9),
            .mask = randint(2, {4, 8}, 100 * seed + 10).to(at::kBool),
            .buffer = randn({4, 8}, 100 * seed + 11),
            .statistic = randn({4}, 100 * seed + 12).abs() + 0.1};
  }

  static Tensors all(const Inputs& in) {
    return {in.x,        in.y,      in.w,     in.v,    in.image,  in.kernel,
            in.sequence, in.labels, in.index, in.mask, in.buffer, in.statistic};
  }

  static Tensors leaves(const Inputs& in) { return {in.x, in.y, in.w, in.v, in.image, in.kernel, in.sequence}; }

  /// The results of a case and the gradients of those that have any.
  static Tensors with_gradients(const OpsCase& tested, const Inputs& in) {
    Tensors results = tested.run(in), differentiable, weights;
    for (const at::Tensor& result : results) {
      if (!result.requires_grad() || result.numel() == 0) continue;
      differentiable.push_back(result);
      weights.push_back(at::cos(result.detach()));
    }
    if (differentiable.empty()) return results;
    const Tensors gradients = torch::autograd::grad(differentiable, leaves(in), weights, /*retain_graph=*/{},
                                                    /*create_graph=*/false, /*allow_unused=*/true);
    results.insert(results.end(), gradients.begin(), gradients.end());
    return results;
  }

  static void expect_replays_equal_eager(const OpsCase& tested) {
    const Inputs in = make(1);
    Tensors results;
    Graph graph(device());
    graph.capture([&] { results = with_gradients(tested, in); }, {.warmup = 1});
    for (std::uint64_t round = 2; round < 5; ++round) {
      const Inputs eager = make(round);
      const Tensors mine = all(in), theirs = all(eager);
      for (std::size_t i = 0; i < mine.size(); ++i) mine[i].detach().copy_(theirs[i].detach());
      seed(round);
      const Tensors expected = with_gradients(tested, eager);
      const at::Tensor generator_after = state_of(generator());
      seed(round);
      graph.replay();
      ASSERT_EQ(results.size(), expected.size());
      for (std::size_t i = 0; i < results.size(); ++i) {
        EXPECT_TRUE(same(results[i], expected[i])) << "result " << i << ", inputs " << round;
        if (!results[i].defined() || !expected[i].defined()) continue;
        EXPECT_EQ(results[i].strides(), expected[i].strides()) << "result " << i;
      }
      for (std::size_t i = 0; i < mine.size(); ++i) EXPECT_TRUE(same(mine[i], theirs[i])) << "input " << i;
      EXPECT_TRUE(same(state_of(generator()), generator_after));
    }
  }

  // Some backwards on CUDA differ from run to run; deterministic kernels do not.
  void SetUp() override {
    DeviceTest::SetUp();
    at::globalContext().setDeterministicAlgorithms(on_cuda(), /*warn_only=*/true);
    at::globalContext().setDeterministicFillUninitializedMemory(false);
  }
  void TearDown() override {
    at::globalContext().setDeterministicAlgorithms(false, false);
    DeviceTest::TearDown();
  }

  static void expect_all(const std::vector<OpsCase>& cases) {
    for (const OpsCase& tested : cases) {
      SCOPED_TRACE(tested.name);
      try {
        expect_replays_equal_eager(tested);
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
      }
    }
  }
};
PIANOLA_ON_EVERY_DEVICE(TapeOpsTest);

TEST_P(TapeOpsTest, ArithmeticEqualsEager) { expect_all(arithmetic_cases()); }
TEST_P(TapeOpsTest, LayersEqualEager) { expect_all(layer_cases()); }
TEST_P(TapeOpsTest, ViewsCopiesAndWritesEqualEager) { expect_all(memory_cases()); }

TEST_P(TapeOpsTest, WritesInPlaceAndTheirGradientsEqualEager) { expect_all(inplace_cases()); }

TEST_P(TapeOpsTest, OfAllCasesThereAreAtLeastAHundred) {
  EXPECT_GE(arithmetic_cases().size() + layer_cases().size() + memory_cases().size(), 100U);
}

}  // namespace
}  // namespace pianola::testing::tape_ops_test

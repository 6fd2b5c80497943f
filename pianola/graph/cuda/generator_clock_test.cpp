#include <pianola/graph/testing/device_test.hpp>

#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include <optional>

namespace pianola::testing::generator_clock_test {
namespace {

/// Draws of several users of one generator, replayed and eager, must be the sequence that eager alone draws.
class GeneratorClockTest : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    probability = at::full({64}, 0.5, device());
    eager_result = at::zeros({64}, device());
  }

  [[nodiscard]] at::Tensor draw() const { return at::bernoulli(probability) + at::rand({64}, device()); }

  /// What eager draws next, without moving the generator.
  [[nodiscard]] at::Tensor eager_draw() const {
    at::Generator chosen = generator();
    const at::Tensor state = state_of(chosen);
    at::Tensor drawn = draw();
    eager_state_after = state_of(chosen);
    chosen.set_state(state);
    return drawn;
  }

  void expect_next_draw(Graph& graph, const at::Tensor& result, const char* when) const {
    const at::Tensor expected = eager_draw();
    graph.replay();
    EXPECT_TRUE(same(result, expected)) << when;
    EXPECT_TRUE(same(state_of(generator()), eager_state_after)) << when;
  }

  at::Tensor probability, eager_result;
  mutable at::Tensor eager_state_after;
};

TEST_P(GeneratorClockTest, FollowsEveryoneElseWhoMovesTheGenerator) {
  at::Tensor first_result, second_result;
  Graph first(device());
  first.capture([&] { first_result = draw(); });
  Graph second(device());
  second.capture([&] { second_result = draw() * 2; });

  expect_next_draw(first, first_result, "at first");
  expect_next_draw(first, first_result, "again");
  (void)at::rand({5}, device());
  expect_next_draw(first, first_result, "after an eager draw");
  second.replay();
  expect_next_draw(first, first_result, "after another graph's replay");
  seed(11);
  expect_next_draw(first, first_result, "after seeding");
  Graph third(device());
  at::Tensor third_result;
  third.capture([&] { third_result = draw(); });
  expect_next_draw(first, first_result, "after another capture");
  third.reset();
  expect_next_draw(first, first_result, "after that graph is gone");
}

TEST_P(GeneratorClockTest, FollowsTorchsOwnGraphs) {
  at::Tensor result, torch_result;
  Graph graph(device());
  graph.capture([&] { result = draw(); });
  expect_next_draw(graph, result, "at first");
  {
    at::cuda::CUDAGraph torch_graph;
    const c10::cuda::CUDAStreamGuard on_side_stream(c10::cuda::getStreamFromPool());
    torch_graph.capture_begin();
    torch_result = draw();
    torch_graph.capture_end();
    expect_next_draw(graph, result, "after torch's capture");
    const at::Tensor expected = eager_draw();
    torch_graph.replay();
    EXPECT_TRUE(same(torch_result, expected)) << "torch's replay after ours";
    // Back to a place where the host stood before: only the tensors' versions tell that torch has filled them since.
    const at::Tensor here = state_of(generator());
    expect_next_draw(graph, result, "after torch's replay");
    at::Generator chosen = generator();
    chosen.set_state(here);
    torch_graph.replay();
    chosen.set_state(here);
    expect_next_draw(graph, result, "after torch's replay and a step back");
  }
  expect_next_draw(graph, result, "after torch's graph is gone");
}

TEST_P(GeneratorClockTest, WorksInInferenceMode) {
  const c10::InferenceMode inference;
  at::Tensor result;
  Graph graph(device());
  graph.capture([&] { result = draw(); });
  for (int replay = 0; replay < 3; ++replay) expect_next_draw(graph, result, "in inference mode");
}

INSTANTIATE_TEST_SUITE_P(On, GeneratorClockTest, ::testing::Values("cuda"), device_name);

}  // namespace
}  // namespace pianola::testing::generator_clock_test

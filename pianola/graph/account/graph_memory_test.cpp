#include <pianola/graph/account/graph_memory.hpp>

#include <pianola/core/error.hpp>
#include <pianola/graph/graph.hpp>
#include <pianola/graph/pool.hpp>
#include <pianola/graph/testing/memory_device_test.hpp>
#include <pianola/memory/plan_proof.hpp>

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>
#include <string>
#include <vector>

namespace pianola::testing::graph_memory_test {
namespace {

using ::testing::HasSubstr;

class GraphMemoryTest : public MemoryDeviceTest {
 protected:
  static bool is_cuda() { return device().is_cuda(); }
};
PIANOLA_ON_EVERY_DEVICE(GraphMemoryTest);

TEST_P(GraphMemoryTest, ThePoolIsWhatIsHeldScratchAndFragments) {
  const at::Tensor input = ones(8);
  at::Tensor result;
  Graph graph(device());
  graph.capture([&] { result = ((input + 1) * 2).narrow(0, 0, 4 * kFloats).clone(); }, {.inputs = {input}});
  const GraphMemory memory = graph.memory();
  EXPECT_EQ(memory.pool.bytes, graph.info().pool_bytes);
  EXPECT_EQ(memory.pool.bytes, memory.pool.held + memory.pool.scratch + memory.pool.fragments);
  EXPECT_EQ(memory.pool.held, 4 * kMiB) << "the result";
  EXPECT_EQ(memory.pool.scratch, 16 * kMiB) << "what is added, and multiplied";
  EXPECT_EQ(memory.pool.graphs, 1U);
  EXPECT_EQ(memory.own, 20 * kMiB);
  EXPECT_EQ(memory.shared, 0U);
  EXPECT_EQ(memory.inputs, 8 * kMiB);
  EXPECT_GE(memory.retained, 8 * kMiB);
}

TEST_P(GraphMemoryTest, AResultThatNobodyHoldsAnyMoreIsScratch) {
  const at::Tensor input = ones(4);
  at::Tensor result;
  Graph graph(device());
  graph.capture([&] { result = input + 1; });
  result.reset();
  const GraphMemory memory = graph.memory();
  EXPECT_EQ(memory.pool.held, 0U);
  EXPECT_EQ(memory.pool.scratch, 4 * kMiB);
}

TEST_P(GraphMemoryTest, GraphsOfOnePoolSayWhatTheyShare) {
  const at::Tensor input = ones(32);
  const GraphPool pool(device());
  Graph first(device()), second(device());
  const auto step = [&] { (void)(input * 2).sum(); };
  first.capture(step, {.pool = pool});
  second.capture(step, {.pool = pool});
  const GraphMemory memory = second.memory();
  EXPECT_EQ(memory.pool.graphs, 2U);
  if (is_cuda()) {
    EXPECT_GE(memory.shared, 32 * kMiB) << "the product lies where the first one's does";
    EXPECT_LE(memory.pool.bytes, 64 * kMiB);
  } else {
    EXPECT_EQ(memory.shared, 0U) << "a tape keeps its results to itself";
  }
  first.reset();
  EXPECT_EQ(second.memory().pool.graphs, 1U);
  EXPECT_EQ(second.memory().shared, 0U);
}

TEST_P(GraphMemoryTest, InputsThatGraphsShareAreCountedForTheFirst) {
  const at::Tensor buffer = ones(8);
  const at::Tensor shorter = buffer.narrow(0, 0, 2 * kFloats), other = ones(2);
  at::Tensor sum, product, difference;
  Graph first(device()), second(device()), third(device());
  first.capture([&] { sum = buffer + 1; }, {.inputs = {buffer}});
  second.capture([&] { product = shorter * other; }, {.inputs = {shorter, other}});
  third.capture([&] { difference = shorter - 1; }, {.inputs = {shorter}});
  const std::vector<GraphMemory> all = memory_of_graphs(device());
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(all[0].inputs, 8 * kMiB);
  EXPECT_EQ(all[0].shared_inputs, 0U);
  EXPECT_EQ(all[1].inputs, 4 * kMiB);
  EXPECT_EQ(all[1].shared_inputs, 2 * kMiB);
  EXPECT_EQ(all[2].shared_inputs, 2 * kMiB) << "counted once, however many have it";
  EXPECT_EQ(second.memory().shared_inputs, 0U) << "a graph by itself knows of no other";
}

TEST_P(GraphMemoryTest, ThePictureHasEveryBlockOfTheRecordingInItsPlace) {
  const at::Tensor weight = at::ones({512, 512}, device()).requires_grad_();
  at::Tensor gradient;
  Graph graph(device());
  graph.capture([&] {
    at::Tensor hidden = weight;
    for (int i = 0; i < 6; ++i) hidden = hidden.mul(0.5).relu();
    gradient = torch::autograd::grad({hidden.sum()}, {weight}).front();
  });
  const GraphMemory memory = graph.memory();
  ASSERT_EQ(memory.picture.blocks.size(), memory.blocks);
  ASSERT_GT(memory.blocks, 12U);
  std::vector<memory::Block> lives;
  for (const memory::PicturedBlock& block : memory.picture.blocks) lives.push_back(block.life);
  EXPECT_EQ(memory::find_flaw(lives, memory.picture.places), std::nullopt) << "no two that live at a time overlap";
  EXPECT_LE(memory.at_most, memory.picture.places.bytes);
  EXPECT_EQ(memory.picture.segments.empty(), !is_cuda());
  EXPECT_THAT(memory.to_html(), HasSubstr("<canvas"));
  EXPECT_FALSE(memory.at_peak.empty());
}

TEST_P(GraphMemoryTest, WithoutATraceThePoolIsKnownAllTheSame) {
  const at::Tensor input = ones(4);
  at::Tensor result;
  Graph graph(device());
  graph.capture([&] { result = input + 1; }, {.trace = false});
  const GraphMemory memory = graph.memory();
  EXPECT_GE(memory.pool.bytes, 4 * kMiB);
  EXPECT_EQ(memory.blocks, 0U);
  EXPECT_THAT(memory.report().to_text(), HasSubstr("held by tensors"));
}

TEST_P(GraphMemoryTest, AGraphWithoutACaptureHasNoAccount) {
  const Graph graph(device());
  EXPECT_THROW((void)graph.memory(), UsageError);
}

TEST_P(GraphMemoryTest, AllGraphsOfTheProcessAreListedInTheOrderOfTheirCaptures) {
  const std::size_t before = memory_of_graphs(device()).size();
  const at::Tensor input = ones(1);
  Graph small(device()), large(device());
  small.capture([&] { (void)(input + 1); });
  large.capture([&] { (void)(at::cat({input, input, input, input}) + 1); });
  const std::vector<GraphMemory> all = memory_of_graphs(device());
  ASSERT_EQ(all.size(), before + 2);
  EXPECT_LT(all[before].own, all[before + 1].own);
  small.reset();
  EXPECT_EQ(memory_of_graphs(device()).size(), before + 1);
}

}  // namespace
}  // namespace pianola::testing::graph_memory_test

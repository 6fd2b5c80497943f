#include <pianola/core/error.hpp>
#include <pianola/core/out_of_memory_error.hpp>
#include <pianola/graph/eager.hpp>
#include <pianola/graph/graph.hpp>
#include <pianola/graph/testing/allocator_settings.hpp>
#include <pianola/graph/testing/device_test.hpp>
#include <pianola/graph/testing/mlp.hpp>

#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <numeric>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace pianola::testing::shared_region_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr std::size_t kMiB = 1U << 20U;

/// Graphs that plan their memory in one region. The tape takes the option, and keeps all results.
class SharedRegionTest : public DeviceTest {
 protected:
  static GraphPool make_pool(bool can_sleep = false) {
    return {device(), {.can_sleep = can_sleep, .plan_memory = true}};
  }
  // The run before the first capture makes cuBLAS's workspaces, for which its plan has room. A shared region serves later plans as well.
  // With expandable segments each has its own, and the later ones are so small that torch takes them from segments of small blocks, of
  // which there is none before the second.
  static int captures_until_level() { return by_segments(1, 2); }
};
PIANOLA_ON_EVERY_DEVICE(SharedRegionTest);

at::Tensor numbers(at::IntArrayRef sizes, std::uint64_t seed, c10::Device device) {
  return at::randn(sizes, at::make_generator<at::CPUGeneratorImpl>(seed)).to(device);
}

/// A layer of a transformer at several lengths. What it gives goes into memory of its own.
class Layer {
 public:
  static constexpr std::size_t kLengths = 16;

  explicit Layer(c10::Device device)
      : width_(device.is_cuda() ? 256 : 8),
        step_(device.is_cuda() ? 128 : 2),
        x_(numbers({longest(), width_}, 1, device)),
        out_(at::zeros_like(x_)) {
    for (std::uint64_t i = 0; i < 4; ++i) weights_.push_back(numbers({width_, width_}, 20 + i, device) * 0.1);
  }

  void feed(std::uint64_t seed) { x_.copy_(numbers({longest(), width_}, seed, x_.device())); }
  [[nodiscard]] at::Tensor compute(std::size_t bucket) const {
    const at::Tensor x = x_.narrow(0, 0, length(bucket));
    const at::Tensor seen = at::softmax(at::mm(at::mm(x, weights_[0]), at::mm(x, weights_[1]).t()), -1);
    const at::Tensor mixed = at::mm(at::softmax(seen * 2 - 1, 0), at::mm(x, weights_[2]));
    return x + at::gelu(at::mm(mixed, weights_[3]));
  }
  void run(std::size_t bucket) { out(bucket).copy_(compute(bucket)); }
  [[nodiscard]] at::Tensor out(std::size_t bucket) const { return out_.narrow(0, 0, length(bucket)); }

 private:
  [[nodiscard]] std::int64_t length(std::size_t bucket) const { return step_ * static_cast<std::int64_t>(bucket + 1); }
  [[nodiscard]] std::int64_t longest() const { return length(kLengths - 1); }

  std::int64_t width_, step_;
  at::Tensor x_, out_;
  std::vector<at::Tensor> weights_;
};

struct Order {
  const char* name;
  std::vector<std::size_t> buckets;
};

std::vector<Order> orders() {
  std::vector<std::size_t> ascending(Layer::kLengths);
  std::iota(ascending.begin(), ascending.end(), std::size_t{0});
  std::vector<std::size_t> descending = ascending, shuffled = ascending;
  std::ranges::reverse(descending);
  std::ranges::shuffle(shuffled, std::mt19937(5));
  return {{"ascending", ascending}, {"descending", descending}, {"shuffled", shuffled}};
}

TEST_P(SharedRegionTest, BucketsInAnyOrderTakeWhatTheLargestTakes) {
  PIANOLA_SKIP_WITH_EXPANDABLE_SEGMENTS();
  Layer layer(device());
  const auto capture = [&](Graph& graph, const GraphPool& pool, std::size_t bucket) {
    graph.capture([&layer, bucket] { layer.run(bucket); }, {.warmup = 1, .pool = pool});
  };
  std::size_t alone = 0;
  {
    const GraphPool pool = make_pool();
    Graph largest(device());
    capture(largest, pool, Layer::kLengths - 1);
    alone = pool.bytes();
  }
  for (const Order& order : orders()) {
    SCOPED_TRACE(order.name);
    GraphPool pool = make_pool(/*can_sleep=*/true);
    std::vector<std::optional<Graph>> graphs(Layer::kLengths);
    for (const std::size_t bucket : order.buckets) capture(graphs[bucket].emplace(device()), pool, bucket);
    if (device().is_cuda()) {
      EXPECT_LE(pool.bytes(), alone + alone / 20 + 10 * kMiB);
      EXPECT_EQ(graphs[0]->info().planned_bytes, graphs[5]->info().planned_bytes) << "they share one region";
    }
    std::mt19937 random(3);
    for (std::uint64_t step = 0; step < 40; ++step) {
      const std::size_t bucket = random() % Layer::kLengths;
      layer.feed(step);
      const at::Tensor expected = layer.compute(bucket);
      graphs[bucket]->replay();
      ASSERT_TRUE(same(layer.out(bucket), expected)) << "bucket " << bucket << " in step " << step;
      if (step % 10 != 9) continue;
      pool.suspend();
      pool.resume();
    }
  }
}

TEST_P(SharedRegionTest, TrainingsReplayAsEager) {
  const GraphPool pool = make_pool();
  std::deque<Training> trainings;
  std::deque<Graph> graphs;
  for (int i = 0; i < 4; ++i) {
    Training& training = trainings.emplace_back(device());
    graphs.emplace_back(device()).capture([&training] { training.step(); }, {.warmup = 2, .pool = pool});
  }
  for (std::size_t i = 0; i < graphs.size(); ++i) {
    expect_replays_equal_eager(graphs[i], trainings[i]);
    EXPECT_EQ(graphs[i].info().planned_bytes != 0, device().is_cuda());
  }
}

// Each is held while later graphs are captured and replayed, which want the same places.
TEST_P(SharedRegionTest, ResultsThatAreHeldStay) {
  const GraphPool pool = make_pool();
  const at::Tensor x = at::ones({1 << 20}, device());
  std::vector<at::Tensor> results(6);
  std::deque<Graph> graphs;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const auto step = [&, i] { results[i] = ((x * 2 + 1).sqrt() * static_cast<double>(i)).square(); };
    graphs.emplace_back(device()).capture(step, {.warmup = 1, .pool = pool});
    graphs.back().replay();
    const at::Tensor now = results[i].clone();
    results[i].zero_();
    for (std::size_t k = 0; k < i; ++k) {
      results[k].fill_(static_cast<double>(k) + 0.5);
      graphs.back().replay();
      EXPECT_TRUE(same(results[k], at::full_like(x, static_cast<double>(k) + 0.5))) << "after graph " << i;
    }
    graphs.back().replay();
    EXPECT_TRUE(same(results[i], now));
  }
}

TEST_P(SharedRegionTest, AReaderOfAResultThatAnotherGraphOverwroteIsRefused) {
  PIANOLA_SKIP_WITH_EXPANDABLE_SEGMENTS();
  const GraphPool pool = make_pool();
  const at::Tensor x = at::ones({1 << 20}, device());
  at::Tensor made, read, reused;
  Graph maker(device()), reader(device()), other(device());
  maker.capture([&] { made = x * 2; }, {.warmup = 1, .pool = pool});
  reader.capture([&] { read = made + 1; }, {.warmup = 1, .pool = pool});
  const void* const address = made.data_ptr();
  made.reset();
  other.capture([&] { reused = x * 3; }, {.warmup = 1, .pool = pool});
  if (device().is_cuda()) {
    ASSERT_EQ(reused.data_ptr(), address) << "the case at hand did not arise";
  }
  maker.replay();
  other.replay();
  if (device().is_cuda()) {
    EXPECT_THAT([&] { reader.replay(); }, ThrowsMessage<ReplayError>(HasSubstr("reads a result of another graph")));
  }
  maker.replay();
  reader.replay();
  EXPECT_TRUE(same(read, at::full_like(x, 3.0)));
}

// A graph launched in pieces has scratch in the region between them, where another one of the region runs.
TEST_P(SharedRegionTest, AnEagerPartMayReplayAnotherGraphOfTheRegion) {
  const GraphPool pool = make_pool();
  Layer layer(device()), eager_layer(device());
  Graph outer(device()), inner(device());
  const EagerPart part = eager([&](const std::vector<at::Tensor>& given) {
    if (inner.captured()) inner.replay();
    return std::vector{given[0] + 1};
  });
  const at::Tensor x = at::ones({1 << 20}, device()), y = at::zeros_like(x);
  const auto step = [&] {
    const at::Tensor doubled = x * 2, tripled = x * 3;
    y.copy_(part({doubled})[0] + doubled + tripled);
  };
  outer.capture(step, {.warmup = 1, .pool = pool});
  inner.capture([&] { layer.run(Layer::kLengths - 1); }, {.warmup = 1, .pool = pool});
  for (int i = 0; i < 3; ++i) {
    layer.feed(static_cast<std::uint64_t>(i));
    eager_layer.feed(static_cast<std::uint64_t>(i));
    eager_layer.run(Layer::kLengths - 1);
    y.zero_();
    outer.replay();
    EXPECT_TRUE(same(y, at::full_like(x, 8.0)));
    EXPECT_TRUE(same(layer.out(Layer::kLengths - 1), eager_layer.out(Layer::kLengths - 1)));
  }
}

TEST_P(SharedRegionTest, AResultOutlivesGraphsAndPool) {
  at::Tensor result;
  const at::Tensor x = at::ones({1 << 20}, device());
  {
    const GraphPool pool = make_pool();
    Graph first(device()), second(device());
    first.capture([&] { result = (x * 2 + 1).sqrt().square(); }, {.warmup = 1, .pool = pool});
    second.capture([&] { (void)(x * 3 + 1).sum(); }, {.warmup = 1, .pool = pool});
    first.replay();
    second.replay();
  }
  const at::Tensor others = at::full_like(x, 7.0);
  EXPECT_TRUE(same(result, (x * 2 + 1).sqrt().square()));
  EXPECT_TRUE(same(others, at::full_like(x, 7.0)));
}

TEST_P(SharedRegionTest, CapturesThatFailGrowNothing) {
  const GraphPool pool = make_pool();
  Training training(device());
  const auto state = clone_all(training.state());
  Graph graph(device());
  const auto fail = [&] {
    training.step();
    if (is_recording()) throw std::runtime_error("the step's own");
  };
  std::size_t bytes = 0;
  for (int i = 0; i < (device().is_cuda() ? 200 : 20); ++i) {
    EXPECT_THROW(graph.capture(fail, {.warmup = 1, .pool = pool}), std::runtime_error);
    if (i < captures_until_level()) bytes = pool.bytes();
  }
  EXPECT_EQ(pool.bytes(), bytes);
  expect_same(training.state(), state, "after the failures");
  graph.capture([&] { training.step(); }, {.warmup = 2, .pool = pool});
  expect_replays_equal_eager(graph, training);
}

TEST_P(SharedRegionTest, GraphsThatEndAreNotMissed) {
  const GraphPool pool = make_pool();
  std::size_t bytes = 0;
  for (int i = 0; i < 20; ++i) {
    Training training(device());
    Graph graph(device());
    graph.capture([&] { training.step(); }, {.warmup = 1, .pool = pool});
    if (i < captures_until_level()) bytes = pool.bytes();
    EXPECT_EQ(pool.bytes(), bytes) << i;
    expect_replays_equal_eager(graph, training, 1);
  }
}

TEST_P(SharedRegionTest, CapturesThatPlansCannotServeAreRefused) {
  const GraphPool pool = make_pool();
  Graph graph(device());
  const auto step = [&] { (void)at::empty({8}, device()).fill_(1); };
  EXPECT_THAT([&] { graph.capture(step, {.warmup = 0, .pool = pool}); },
              ThrowsMessage<UsageError>(HasSubstr("plan_memory needs a warm-up run")));
}

TEST_P(SharedRegionTest, ALimitCountsTheWholeRegion) {
  const GraphPool pool = make_pool();
  Training training(device());
  Graph graph(device());
  CaptureOptions options = {.warmup = 1, .pool = pool, .memory_limit = 1};
  EXPECT_THAT([&] { graph.capture([&] { training.step(); }, options); },
              ThrowsMessage<OutOfMemoryError>(HasSubstr("a graph's pool would take")));
  options.memory_limit = 10 * kMiB;
  graph.capture([&] { training.step(); }, options);
  expect_replays_equal_eager(graph, training);
}

}  // namespace
}  // namespace pianola::testing::shared_region_test

#include <pianola/graph/graph.hpp>

#include <pianola/graph/testing/mlp.hpp>
#include <pianola/trace/allocator_events.hpp>

#include <ATen/ops/batch_norm.h>
#include <ATen/ops/index_copy.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>

#if PIANOLA_WITH_CUDA
#include <pianola/graph/testing/no_more_memory.hpp>
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace pianola::restore_test {
namespace {

using testing::clone_all;
using ::testing::Contains;
using testing::expect_same;
using ::testing::HasSubstr;
using testing::NamedTensors;
using testing::same;
using testing::Training;

struct UserError {
  int value;
};

// Warm-up and capture leave everything as it was: the design's rule 2.
class RestoreTest : public testing::DeviceTest {};
PIANOLA_ON_EVERY_DEVICE(RestoreTest);

TEST_P(RestoreTest, LeavesParametersOptimizerStateAndGeneratorsAsTheyWere) {
  Training training(device(), 0.3);
  training.step();
  const NamedTensors before = clone_all(training.state());
  const at::Tensor generator_before = state_of(generator());
  Graph graph(device());
  graph.capture([&] { training.step(); });
  expect_same(training.state(), before, "after capture");
  EXPECT_TRUE(same(state_of(generator()), generator_before));
  for (const at::Tensor& parameter : training.model.parameters) EXPECT_FALSE(parameter.grad().defined());
  graph.replay();
  EXPECT_FALSE(same(training.model.parameters[0], before[0].second)) << "a replay does train";
}

TEST_P(RestoreTest, LeavesEverythingAsItWasInWhicheverRunTheStepThrows) {
  constexpr int kWarmup = 2;
  for (int throwing = 0; throwing <= kWarmup; ++throwing) {
    const std::string when = "after a throw in run " + std::to_string(throwing);
    Training training(device(), 0.3);
    training.step();
    const NamedTensors before = clone_all(training.state());
    const at::Tensor generator_before = state_of(generator());
    int run = 0;
    Graph graph(device());
    const auto step = [&] {
      training.step();
      training.forward();
      training.loss.backward();
      if (run++ == throwing) throw UserError{throwing};
    };
    try {
      graph.capture(step, {.warmup = kWarmup});
      ADD_FAILURE() << "nothing was thrown";
    } catch (const UserError& error) {
      EXPECT_EQ(error.value, throwing);
    }
    EXPECT_FALSE(graph.captured());
    expect_same(training.state(), before, when);
    EXPECT_TRUE(same(state_of(generator()), generator_before)) << when;
    for (const at::Tensor& parameter : training.model.parameters) EXPECT_FALSE(parameter.grad().defined()) << when;
  }
}

TEST_P(RestoreTest, KeepsAGradientThatTheStepDefinesStaticAndZero) {
  const at::Tensor x = randn({4, 16}), w = randn({16, 16}, 2).requires_grad_();
  Graph graph(device());
  graph.capture([&] { at::mm(x, w).sum().backward(); });
  ASSERT_TRUE(w.grad().defined());
  EXPECT_TRUE(same(w.grad(), at::zeros_like(w.grad())));
  const void* address = w.grad().data_ptr();
  for (std::uint64_t step = 0; step < 3; ++step) {
    x.copy_(randn({4, 16}, 10 + step));
    graph.replay();
    EXPECT_EQ(w.grad().data_ptr(), address);
    EXPECT_TRUE(same(w.grad(), torch::autograd::grad({at::mm(x, w).sum()}, {w})[0])) << "step " << step;
  }
}

TEST_P(RestoreTest, AddsToAGradientThatWasDefined) {
  const at::Tensor x = randn({4, 16}), w = randn({16, 16}, 2).requires_grad_();
  const at::Tensor gradient = randn({16, 16}, 3);
  w.mutable_grad() = gradient;
  at::Tensor expected = gradient.clone();
  Graph graph(device());
  graph.capture([&] { at::mm(x, w).sum().backward(); });
  EXPECT_TRUE(w.grad().is_same(gradient));
  EXPECT_TRUE(same(w.grad(), expected)) << "after capture";
  for (std::uint64_t step = 0; step < 3; ++step) {
    x.copy_(randn({4, 16}, 10 + step));
    graph.replay();
    expected = expected + torch::autograd::grad({at::mm(x, w).sum()}, {w})[0];
    EXPECT_TRUE(same(w.grad(), expected)) << "step " << step;
  }
}

TEST_P(RestoreTest, KeepsTheValuesOfAGradientThatTheStepReplaces) {
  const at::Tensor x = randn({4, 16}), w = randn({16, 16}, 2).requires_grad_();
  const at::Tensor gradient = randn({16, 16}, 3);
  w.mutable_grad() = gradient;
  Graph graph(device());
  graph.capture([&] {
    const at::Tensor loss = at::mm(x, w).sum();
    w.mutable_grad().reset();
    loss.backward();
  });
  EXPECT_TRUE(same(w.grad(), gradient)) << "after capture";
  EXPECT_TRUE(same(gradient, randn({16, 16}, 3))) << "the tensor that was replaced";
  x.copy_(randn({4, 16}, 10));
  graph.replay();
  EXPECT_TRUE(same(w.grad(), torch::autograd::grad({at::mm(x, w).sum()}, {w})[0]));
}

// zero_grad(set_to_none) as the first thing in a step: nobody sees the old gradient any more, and nothing reads it.
TEST_P(RestoreTest, ZeroesAGradientThatTheStepDropsBeforeItUsesTheParameter) {
  const at::Tensor x = randn({4, 16}), w = randn({16, 16}, 2).requires_grad_();
  w.mutable_grad() = randn({16, 16}, 3);
  Graph graph(device());
  graph.capture([&] {
    w.mutable_grad().reset();
    at::mm(x, w).sum().backward();
  });
  EXPECT_TRUE(same(w.grad(), at::zeros_like(w.grad()))) << "after capture";
  x.copy_(randn({4, 16}, 10));
  graph.replay();
  EXPECT_TRUE(same(w.grad(), torch::autograd::grad({at::mm(x, w).sum()}, {w})[0]));
}

TEST_P(RestoreTest, PutsAGradientThatWasDefinedBackWhenTheStepThrows) {
  const at::Tensor x = randn({4, 16}), w = randn({16, 16}, 2).requires_grad_();
  const at::Tensor gradient = randn({16, 16}, 3);
  for (const int throwing : {0, 1}) {
    w.mutable_grad() = gradient;
    int run = 0;
    const auto step = [&] {
      const at::Tensor loss = at::mm(x, w).sum();
      w.mutable_grad().reset();
      loss.backward();
      if (run++ == throwing) throw UserError{1};
    };
    Graph graph(device());
    EXPECT_THROW(graph.capture(step, {.warmup = 1}), UserError);
    EXPECT_TRUE(w.grad().is_same(gradient));
    EXPECT_TRUE(same(gradient, randn({16, 16}, 3)));
  }
}

TEST_P(RestoreTest, LeavesRunningStatisticsAsTheyWereAndMovesThemInReplays) {
  const auto run = [](const at::Tensor& x, const at::Tensor& mean, const at::Tensor& var, const at::Tensor& count) {
    count.add_(1);
    return at::batch_norm(x, {}, {}, mean, var, /*training=*/true, 0.1, 1e-5, /*cudnn_enabled=*/true);
  };
  const at::Tensor x = randn({8, 4, 3, 3}), mean = randn({4}, 2), var = randn({4}, 3).abs();
  const at::Tensor count = at::zeros({}, x.options().dtype(at::kLong));
  const at::Tensor eager_mean = mean.clone(), eager_var = var.clone(), eager_count = count.clone();
  at::Tensor y;
  Graph graph(device());
  graph.capture([&] { y = run(x, mean, var, count); });
  EXPECT_TRUE(same(mean, eager_mean));
  EXPECT_TRUE(same(var, eager_var));
  EXPECT_TRUE(same(count, eager_count));
  for (std::uint64_t step = 0; step < 4; ++step) {
    x.copy_(randn({8, 4, 3, 3}, 10 + step));
    graph.replay();
    EXPECT_TRUE(same(y, run(x, eager_mean, eager_var, eager_count))) << "step " << step;
    EXPECT_TRUE(same(mean, eager_mean));
    EXPECT_TRUE(same(var, eager_var));
    EXPECT_TRUE(same(count, eager_count));
  }
}

TEST_P(RestoreTest, PutsBackWhatIsWrittenThroughViewsAndOutVariants) {
  const at::Tensor x = randn({2, 16}), cache = randn({6, 16}, 2), result = randn({2, 16}, 3);
  const at::Tensor position = at::ones({2}, x.options().dtype(at::kLong)).cumsum(0);
  const auto run = [&](const at::Tensor& into, at::Tensor out) {
    into.narrow(0, 4, 2).mul_(x);
    into.slice(0, 0, 4).index_copy_(0, position, x);
    into.view({-1}).narrow(0, 0, 3).fill_(1);
    at::mul_out(out, x, into.narrow(0, 1, 2));
  };
  const at::Tensor eager_cache = cache.clone(), eager_result = result.clone();
  Graph graph(device());
  graph.capture([&] { run(cache, result); });
  EXPECT_TRUE(same(cache, eager_cache));
  EXPECT_TRUE(same(result, eager_result));
  for (std::uint64_t step = 0; step < 3; ++step) {
    x.copy_(randn({2, 16}, 10 + step));
    graph.replay();
    run(eager_cache, eager_result);
    EXPECT_TRUE(same(cache, eager_cache)) << "step " << step;
    EXPECT_TRUE(same(result, eager_result)) << "step " << step;
  }
}

TEST_P(RestoreTest, LetsWarmUpRunsCountWithRestoreOff) {
  constexpr int kWarmup = 2;
  seed(3);
  Training eager(device(), 0.3);
  std::vector<NamedTensors> expected;
  for (int step = 0; step < kWarmup + 3; ++step) {
    eager.step();
    expected.push_back(clone_all(eager.everything()));
  }
  const at::Tensor generator_after = state_of(generator());

  seed(3);
  Training graphed(device(), 0.3);
  Graph graph(device());
  graph.capture([&] { graphed.step(); }, {.warmup = kWarmup, .restore = false});
  NamedTensors warm = expected[kWarmup - 1];
  warm.resize(graphed.state().size());
  expect_same(graphed.state(), warm, "after warm-up; recording does not count");
  for (int step = kWarmup; step < kWarmup + 3; ++step) {
    graph.replay();
    expect_same(graphed.everything(), expected[static_cast<std::size_t>(step)], "in step " + std::to_string(step));
  }
  EXPECT_TRUE(same(state_of(generator()), generator_after));
}

TEST_P(RestoreTest, WarnsOfStateThatTheStepMakesInItsFirstRun) {
  const at::Tensor x = randn({16});
  at::Tensor momentum;
  Graph graph(device());
  graph.capture([&] {
    if (!momentum.defined()) momentum = at::zeros_like(x);
    momentum.mul_(0.9).add_(x);
  });
  EXPECT_THAT(graph.info().warnings, Contains(HasSubstr("make such state before the capture")));
}

// The most that is in use at a time of what was handed out while it lives.
class PeakOfMemory final : public trace::AllocatorListener {
 public:
  explicit PeakOfMemory(c10::Device device) : device_(device), watch_(*this, trace::AllocatorWatch::Of::with_frees) {}
  void on_memory(const trace::AllocatorEvent& event) override {
    const std::lock_guard lock(mutex_);
    if (event.freed) {
      const auto block = live_.find(event.address);
      if (block == live_.end()) return;
      now_ -= block->second;
      live_.erase(block);
      return;
    }
    if (event.device != device_) return;
    live_[event.address] = event.bytes;
    now_ += event.bytes;
    most_ = std::max(most_, now_);
  }
  [[nodiscard]] std::size_t bytes() const {
    const std::lock_guard lock(mutex_);
    return most_;
  }

 private:
  c10::Device device_;
  mutable std::mutex mutex_;
  std::map<std::uintptr_t, std::size_t> live_;
  std::size_t now_ = 0, most_ = 0;
  trace::AllocatorWatch watch_;
};

TEST_P(RestoreTest, TakesACopyOfWhatIsWrittenAndNoMoreThanEagerBesides) {
  constexpr std::size_t kMiB = 1U << 20U;
  const at::Tensor written = randn({1 << 20}), read = randn({1 << 21});  // 4 and 8 MiB
  std::vector<at::Tensor> results;
  const auto only_read = [&] {
    results.clear();
    results.push_back(read * 2);
    results.push_back(read + results[0]);
  };
  const auto step = [&] {
    only_read();
    written.add_(results[1].narrow(0, 0, 1 << 20));
  };
  step();  // and CUDA's allocator can be watched
  const auto peak_of = [&](const auto& call) {
    results.clear();
    const PeakOfMemory peak(device());
    call();
    return peak.bytes();
  };
  const std::size_t eager = peak_of(step);
  EXPECT_EQ(eager, 16 * kMiB);
  for (const int warmup : {0, 1, 3}) {
    Graph reader(device()), graph(device());
    const std::size_t of_reader = peak_of([&] { reader.capture(only_read, {.warmup = warmup}); });
    const at::Tensor before = written.clone();
    const std::size_t captured = peak_of([&] { graph.capture(step, {.warmup = warmup}); });
    EXPECT_TRUE(same(written, before));
    const bool runs = warmup > 0 || !on_cuda();  // else nothing writes before a replay does
    EXPECT_GE(captured + kMiB, of_reader + (runs ? written.nbytes() : 0)) << "the copy is seen";
    EXPECT_LE(captured, of_reader + written.nbytes() + kMiB) << warmup;
    if (!on_cuda()) continue;  // the tape keeps memory of its own for all results
    EXPECT_LE(captured, eager + written.nbytes() + kMiB) << warmup;
  }
}

#if PIANOLA_WITH_CUDA
TEST_P(RestoreTest, KeepsASnapshotInHostMemoryWhereTheDeviceHasNoRoom) {
  if (!on_cuda()) GTEST_SKIP() << "the CPU has one memory";
  const at::Tensor state = randn({1 << 26});  // 256 MB
  const at::Tensor before = state.cpu();
  Graph graph(device());
  {
    const testing::NoMoreMemory but_for(std::size_t{100} << 20U);
    graph.capture([&] { state.mul_(2); });
    EXPECT_TRUE(same(state.cpu(), before));
  }
  graph.replay();
  EXPECT_TRUE(same(state.cpu(), before * 2));
}
#endif

}  // namespace
}  // namespace pianola::restore_test

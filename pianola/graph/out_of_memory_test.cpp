#include <pianola/graph/graph.hpp>

#include <pianola/core/out_of_memory_error.hpp>
#include <pianola/graph/testing/allocator_settings.hpp>
#include <pianola/graph/testing/failing_memory.hpp>
#include <pianola/graph/testing/mlp.hpp>

#include <c10/util/Exception.h>
#include <gmock/gmock.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>

namespace pianola::out_of_memory_test {
namespace {

using testing::clone_all;
using testing::expect_same;
using testing::FailingMemory;
using testing::same;
using testing::Training;

constexpr int kRecordings = 2;  // of a capture at most, each of which asks for a generator's numbers

class OutOfMemoryTest : public testing::DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    PIANOLA_SKIP_WHERE_NO_ALLOCATION_CAN_FAIL();
    memory.emplace(device());
  }

  // Each allocation fails in turn, until a capture asks for fewer, and twice: what libraries take before they fail they may keep. How
  // often a capture was refused for it.
  int count_of_refusals(const CaptureOptions& options) {
    settle(options);
    int refusals = 0, words_kept = 0;
    for (int number = 1; !HasFailure(); ++number) {
      SCOPED_TRACE("allocation " + std::to_string(number));
      std::optional<Run> run(*memory);
      if (run->is_refused(number, options)) {
        ++refusals;
        run->expect_all_as_before();
        run.emplace(*memory);
        if (run->is_refused(number, options)) {
          run->expect_all_as_before();
          const std::int64_t kept = run->bytes_kept();
          EXPECT_LE(kept, Run::most_kept()) << "memory that nobody gives back";
          words_kept += kept > 0 ? 1 : 0;
        }
      }
      if (!run->graph.captured()) run->graph.capture([&] { run->training.step(); }, options);
      run->expect_replays_as_eager();
      if (!run->has_failed) break;
    }
    EXPECT_LE(words_kept, kRecordings) << "each failure keeps a block";
    return refusals;
  }

  // What libraries, streams and generators take once and keep.
  static void settle(const CaptureOptions& options) {
    Training(device(), 0.2).step();  // no capture can hold that libraries make their handles
    for (int round = 0; round < 2; ++round) {
      Training training(device(), 0.2);
      Graph graph(device());
      graph.capture([&] { training.step(); }, options);
      graph.replay();
      synchronize();
    }
  }

  struct Run {
    explicit Run(FailingMemory& failing) : memory(failing), generator(OutOfMemoryTest::generator()) {
      seed(4);
      state = clone_all(training.state());
      drawn = state_of(generator);
      in_use = memory.in_use();
    }

    // By an error of torch's name.
    bool is_refused(int number, const CaptureOptions& options) {
      memory.fail_at(number);
      bool refused = false;
      try {
        graph.capture([&] { training.step(); }, options);
      } catch (const c10::OutOfMemoryError&) {
        refused = true;
      } catch (const OutOfMemoryError& error) {
        refused = true;
        EXPECT_THAT(error.what(), ::testing::HasSubstr("says the test"));
        EXPECT_EQ(error.diagnosis().rule, "PG908");
        EXPECT_FALSE(error.diagnosis().fix.empty());
      }
      has_failed = memory.fail_at(0);
      EXPECT_TRUE(has_failed || !refused);
      return refused;
    }

    void expect_all_as_before() {
      EXPECT_FALSE(graph.captured());
      training.output.reset();
      training.loss.reset();
      training.gradients.clear();
      expect_same(training.state(), state, "after the failure");
      EXPECT_TRUE(same(state_of(generator), drawn));
    }

    // torch keeps one of the two numbers of a generator where there is no memory for the other: its smallest block.
    static std::int64_t most_kept() { return on_cuda() ? 512 : 0; }

    // Autograd's thread lets go of what it had of a failed backward pass behind the error.
    [[nodiscard]] std::int64_t bytes_kept() const {
      synchronize();
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
      while (memory.in_use() > in_use && std::chrono::steady_clock::now() < end) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      return memory.in_use() - in_use;
    }

    void expect_replays_as_eager() {
      Training eager(device(), 0.2);
      for (int step = 0; step < 3; ++step) {
        seed(static_cast<std::uint64_t>(step));
        eager.step();
        seed(static_cast<std::uint64_t>(step));
        graph.replay();
        expect_same(training.everything(), eager.everything(), "in step " + std::to_string(step));
      }
    }

    FailingMemory& memory;
    at::Generator generator;
    Training training{device(), 0.2};
    testing::NamedTensors state;
    at::Tensor drawn;
    std::int64_t in_use = 0;
    bool has_failed = false;
    Graph graph{device()};
  };

  std::optional<FailingMemory> memory;
};
PIANOLA_ON_EVERY_DEVICE(OutOfMemoryTest);

TEST_P(OutOfMemoryTest, AtEachAllocationOfACaptureNothingIsLost) { EXPECT_GT(count_of_refusals({.warmup = 1}), 50); }

TEST_P(OutOfMemoryTest, AtEachAllocationOfARecordingWithoutWarmupNothingIsLost) {
  EXPECT_GT(count_of_refusals({.warmup = 0}), 20);
}

TEST_P(OutOfMemoryTest, AtEachAllocationOfACaptureWithBranchesNothingIsLost) {
  EXPECT_GT(count_of_refusals({.warmup = 1, .branches = 4}), 50);
}

TEST_P(OutOfMemoryTest, AtEachAllocationOfACaptureThatPlansNothingIsLost) {
  if (!on_cuda()) GTEST_SKIP() << "the tape plans no memory";
  EXPECT_GT(count_of_refusals({.warmup = 1, .plan_memory = true}), 50);
}

TEST_P(OutOfMemoryTest, AtEachAllocationOfPlannedLanesNothingIsLost) {
  if (!on_cuda()) GTEST_SKIP() << "the tape plans no memory";
  EXPECT_GT(count_of_refusals({.warmup = 1, .branches = 4, .plan_memory = true}), 50);
}

TEST_P(OutOfMemoryTest, AtEachAllocationOfACaptureIntoAPoolThatPlansAndSleepsItsGraphsGoOn) {
  PIANOLA_SKIP_WITH_EXPANDABLE_SEGMENTS();
  GraphPool pool(device(), {.can_sleep = true, .plan_memory = true});
  Training other(device(), 0, 2);
  const testing::NamedTensors before = clone_all(other.state());
  Graph first(device());
  first.capture([&] { other.step(); }, {.warmup = 1, .pool = pool});
  EXPECT_GT(count_of_refusals({.warmup = 1, .pool = pool}), 50);
  (void)pool.suspend();
  pool.resume();
  Training eager(device(), 0, 2);
  expect_same(other.state(), before, "before the first replay");
  for (int step = 0; step < 3; ++step) {
    first.replay();
    eager.step();
    expect_same(other.everything(), eager.everything(), "in step " + std::to_string(step));
  }
}

}  // namespace
}  // namespace pianola::out_of_memory_test

#include <pianola/graph/graph.hpp>

#include <pianola/core/out_of_memory_error.hpp>
#include <pianola/graph/testing/mlp.hpp>
#include <pianola/trace/testing/failing_allocator.hpp>

#include <c10/util/Exception.h>
#include <gmock/gmock.h>

#include <cstdint>
#include <string>

namespace pianola::out_of_memory_test {
namespace {

using testing::clone_all;
using testing::expect_same;
using testing::FailingAllocator;
using testing::Training;

class OutOfMemoryTest : public testing::FailingAllocatorTest {
 protected:
  // Each allocation fails in turn, until a capture asks for fewer. How often a capture was refused for it.
  int count_of_refusals(const CaptureOptions& options) {
    int refusals = 0;
    for (int number = 1; !::testing::Test::HasFailure(); ++number) {
      SCOPED_TRACE("allocation " + std::to_string(number));
      Run run(allocator);
      const bool refused = run.is_refused(number, options);
      refusals += refused ? 1 : 0;
      if (refused) run.expect_all_as_before();
      if (!run.graph.captured()) run.graph.capture([&] { run.training.step(); }, options);
      run.expect_replays_as_eager();
      if (!allocator.has_failed()) break;
    }
    return refusals;
  }

  struct Run {
    explicit Run(FailingAllocator& failing)
        : allocator(failing), generator(at::globalContext().defaultGenerator(kDevice)) {
      generator.set_current_seed(4);
      state = clone_all(training.state());
      drawn = generator.get_state();
      live = FailingAllocator::live;
    }

    // By an error of torch's name.
    bool is_refused(int number, const CaptureOptions& options) {
      allocator.fail_at(number);
      bool refused = false;
      try {
        graph.capture([&] { training.step(); }, options);
      } catch (const c10::OutOfMemoryError&) {
        refused = true;
      } catch (const OutOfMemoryError& error) {
        refused = true;
        EXPECT_THAT(error.what(), ::testing::HasSubstr("says the test"));
      }
      const bool failed = allocator.has_failed();
      allocator.fail_at(0, failed);
      EXPECT_TRUE(failed || !refused);
      return refused;
    }

    void expect_all_as_before() {
      EXPECT_FALSE(graph.captured());
      training.output.reset();
      training.loss.reset();
      training.gradients.clear();
      EXPECT_LE(FailingAllocator::live, live) << "memory that nobody gives back";
      expect_same(training.state(), state, "after the failure");
      EXPECT_TRUE(generator.get_state().equal(drawn));
    }

    void expect_replays_as_eager() {
      Training eager(kDevice, 0.2);
      for (int step = 0; step < 3; ++step) {
        generator.set_current_seed(static_cast<std::uint64_t>(step));
        eager.step();
        generator.set_current_seed(static_cast<std::uint64_t>(step));
        graph.replay();
        expect_same(training.everything(), eager.everything(), "in step " + std::to_string(step));
      }
    }

    FailingAllocator& allocator;
    at::Generator generator;
    Training training{kDevice, 0.2};
    testing::NamedTensors state;
    at::Tensor drawn;
    std::int64_t live = 0;
    Graph graph{kDevice};
  };

  static constexpr c10::DeviceType kDevice = c10::kCPU;
};

TEST_F(OutOfMemoryTest, AtEachAllocationOfACaptureNothingIsLost) { EXPECT_GT(count_of_refusals({.warmup = 1}), 50); }

TEST_F(OutOfMemoryTest, AtEachAllocationOfARecordingWithoutWarmupNothingIsLost) {
  EXPECT_GT(count_of_refusals({.warmup = 0}), 20);
}

TEST_F(OutOfMemoryTest, AtEachAllocationOfACaptureWithBranchesNothingIsLost) {
  EXPECT_GT(count_of_refusals({.warmup = 1, .branches = 4}), 50);
}

}  // namespace
}  // namespace pianola::out_of_memory_test

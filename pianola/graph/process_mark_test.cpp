#include <pianola/graph/graph.hpp>

#include <pianola/graph/pool_state.hpp>
#include <pianola/graph/testing/device_test.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <thread>

namespace pianola::process_mark_test {
namespace {

// exit() destroys what is static when the thread-locals of its thread are gone, torch's current streams among them.
class ExitTest : public testing::DeviceTest {
 protected:
  static void SetUpTestSuite() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};
PIANOLA_ON_EVERY_DEVICE(ExitTest);

void capture_and_replay(Graph& graph, at::Tensor& x, const CaptureOptions& options = {.warmup = 1}) {
  graph.capture([&] { x.mul_(2).add_(1); }, options);
  graph.replay();
}

TEST_P(ExitTest, GraphsAndPoolsMayBeStatic) {
  EXPECT_EXIT(
      {
        static GraphPool pool(device());
        static at::Tensor x = at::ones({8}, device());
        static Graph alone(device());
        static Graph in_pool(device());
        capture_and_replay(alone, x);
        capture_and_replay(in_pool, x, {.warmup = 1, .pool = pool});
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_P(ExitTest, AStaticPoolMaySleep) {
  PIANOLA_SKIP_WITH_EXPANDABLE_SEGMENTS();
  EXPECT_EXIT(
      {
        static GraphPool pool(device(), {.can_sleep = true});
        static const at::Tensor x = at::ones({1 << 20}, device());
        static at::Tensor result;
        static Graph graph(device());
        graph.capture([] { result = x * 2; }, {.warmup = 1, .pool = pool});
        graph.replay();
        (void)pool.suspend();
        std::exit(pool.is_asleep() ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_P(ExitTest, AnyThreadMayCallIt) {
  EXPECT_EXIT(
      {
        static at::Tensor x = at::ones({8}, device());
        static std::optional<Graph> here(device());
        static std::optional<Graph> there;
        capture_and_replay(*here, x);
        std::thread([] {
          capture_and_replay(there.emplace(device()), x);
          here->replay();
          std::exit(0);
        }).join();
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_P(ExitTest, AGraphOfAThreadEndsWithTheThread) {
  const std::size_t before = living_pools().size();
  at::Tensor x = at::ones({8}, device());
  std::thread([&] {
    thread_local Graph graph(device());
    capture_and_replay(graph, x);
    EXPECT_EQ(living_pools().size(), before + 1);
  }).join();
  EXPECT_EQ(living_pools().size(), before);
}

}  // namespace
}  // namespace pianola::process_mark_test

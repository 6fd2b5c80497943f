// Calls of `graphed` whose pool sleeps, and limits of their memory.
#include <pianola/callable/testing/graphed_fixture.hpp>
#include <pianola/core/error.hpp>
#include <pianola/graph/pool.hpp>
#include <pianola/graph/testing/allocator_settings.hpp>

#include <gmock/gmock.h>

#include <cstdint>

namespace pianola::graphed_sleep_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::same;
using ::testing::ThrowsMessage;

class GraphedSleepTest : public testing::GraphedTest {
 protected:
  void SetUp() override {
    GraphedTest::SetUp();
    PIANOLA_SKIP_WITH_EXPANDABLE_SEGMENTS();
  }
};
PIANOLA_ON_EVERY_DEVICE(GraphedSleepTest);

TEST_P(GraphedSleepTest, ACallWhosePoolSleepsIsRefusedAndOneThatHasNoGraphYetIsEager) {
  const at::NoGradGuard no_grad;
  GraphPool pool(device(), {.can_sleep = true});
  int runs = 0;
  Graphed graphed = pianola::graphed(
      [&](const at::Tensor& x) {
        ++runs;
        return square(x);
      },
      logged({.pool = pool}));
  for (std::uint64_t call = 0; call < 5; ++call) EXPECT_TRUE(same(graphed(batch(call)), square(batch(call))));
  ASSERT_EQ(replays(graphed), 2U);
  (void)pool.suspend();
  runs = 0;
  EXPECT_THAT([&] { (void)graphed(batch(9)); },
              ThrowsMessage<UsageError>(HasSubstr("a graph whose pool is asleep; nothing was launched")));
  EXPECT_EQ(runs, 0);
  for (std::uint64_t call = 0; call < 6; ++call) {
    EXPECT_TRUE(same(graphed(batch(call, 3)), square(batch(call, 3)))) << call;
  }
  EXPECT_EQ(latest(graphed).state, GraphedState::warming_up) << "nothing is captured into a pool that sleeps";
  pool.resume();
  for (std::uint64_t call = 0; call < 2; ++call) {
    EXPECT_TRUE(same(graphed(batch(call, 3)), square(batch(call, 3)))) << call;
    EXPECT_TRUE(same(graphed(batch(call)), square(batch(call)))) << call;
  }
  EXPECT_EQ(replays(graphed), 2U + 2U + 2U);
  EXPECT_THAT(reasons, IsEmpty()) << "sleep is no reason to stay eager";
}

TEST_P(GraphedSleepTest, ALimitBelowWhatTheStaticInputsTakeKeepsCallsEager) {
  const at::NoGradGuard no_grad;
  const auto few = [](const at::Tensor& x) { return x.narrow(0, 0, 2).sum(); };
  const at::Tensor large = randn({1 << 20, 2});
  Graphed graphed = pianola::graphed(few, logged({.memory_limit = 4U << 20U}));
  for (int call = 0; call < 6; ++call) EXPECT_TRUE(same(graphed(large), few(large)));
  EXPECT_EQ(latest(graphed).state, GraphedState::eager);
  EXPECT_THAT(reasons, ElementsAre(AllOf(HasSubstr("the static inputs of a graph take 8.0 MiB by themselves"),
                                         HasSubstr("memory_limit is 4.0 MiB"))));
}

}  // namespace
}  // namespace pianola::graphed_sleep_test

#include "self_cpu_time.hpp"

#include <ATen/record_function.h>
#include <torch/csrc/profiler/api.h>

#include <gmock/gmock.h>

#include <chrono>
#include <stdexcept>
#include <thread>

namespace pianola::bench {
namespace {

using ::testing::AllOf;
using ::testing::Ge;
using ::testing::Lt;

void sleep(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

TEST(SelfCpuTime, CountsWhatLiesInsideAnotherEventOnce) {
  EXPECT_EQ(self_time({}), 0U);
  EXPECT_EQ(self_time({{1, 0, 100}, {1, 10, 30}, {1, 15, 20}, {1, 40, 100}, {1, 120, 125}}), 105U);
}

TEST(SelfCpuTime, TakesNoOrderForGranted) {
  EXPECT_EQ(self_time({{1, 120, 125}, {1, 10, 30}, {2, 10, 30}, {1, 0, 100}}), 125U);
  EXPECT_EQ(self_time({{1, 0, 30}, {1, 0, 100}}), 100U) << "of two that begin together the longer one is outside";
}

TEST(SelfCpuTime, IsThatOfAllThreadsTogether) { EXPECT_EQ(self_time({{1, 0, 100}, {2, 10, 30}, {3, 0, 50}}), 170U); }

TEST(SelfCpuTime, CountsEventsThatOnlyOverlapInFull) {
  EXPECT_EQ(self_time({{1, 0, 100}, {1, 50, 150}, {1, 60, 90}}), 200U);
}

TEST(SelfCpuTime, IsOfWhatWasRecordedAndNotOfWhatLiesBetween) {
  const auto iteration = [] {
    sleep(50);
    RECORD_USER_SCOPE("outer");
    sleep(2);
    {
      RECORD_USER_SCOPE("inner");
      sleep(2);
    }
  };
  int synchronized = 0;
  const Timer timer = self_cpu_timer([&] { ++synchronized; }, Waits::counted);
  EXPECT_THAT(timer(iteration, 3), AllOf(Ge(4000.0), Lt(50'000.0)));
  EXPECT_EQ(synchronized, 2) << "before and at the end of what is recorded";
}

TEST(SelfCpuTime, EndsTheProfilerWhenTheIterationThrows) {
  const Timer timer = self_cpu_timer([] {}, Waits::counted);
  EXPECT_THROW(timer([] { throw std::runtime_error("no batch"); }, 1), std::runtime_error);
  EXPECT_FALSE(torch::profiler::impl::profilerEnabled());
}

}  // namespace
}  // namespace pianola::bench

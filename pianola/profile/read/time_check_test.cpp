#include <pianola/profile/read/time_check.hpp>

#include <pianola/core/error.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace pianola::profiling::time_check_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr Nanoseconds kMost = std::numeric_limits<Nanoseconds>::max();
constexpr Nanoseconds kLeast = std::numeric_limits<Nanoseconds>::min();
constexpr Nanoseconds kNow = 1'790'857'026'000'000'123;  // since 1970
constexpr Nanoseconds kDay = 24LL * 3600 * 1'000'000'000;

std::string record() { return "event 7, 'gemm'"; }

struct Wrong {
  const char* name;
  TimeSpan time;
  const char* what;
};
class TimeCheckTable : public ::testing::TestWithParam<Wrong> {};
TEST_P(TimeCheckTable, RefusesWithFileAndRecord) {
  TimeCheck check("the trace 'a.json'");
  check({kNow, kNow + 5}, record);
  EXPECT_THAT([&] { check(GetParam().time, record); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("the trace 'a.json' has a time that cannot be right: "),
                                              HasSubstr(GetParam().what), HasSubstr("where: event 7, 'gemm', from "),
                                              HasSubstr("fix:   "))));
}
INSTANTIATE_TEST_SUITE_P(Times, TimeCheckTable,
                         ::testing::Values(Wrong{"Backwards", {kNow, kNow - 1}, "it ends before it begins"},
                                           Wrong{"FromTheLeast", {kLeast, kNow}, "95 years"},
                                           Wrong{"ToTheMost", {kNow, kMost}, "95 years"},
                                           Wrong{"AllThereIs", {kLeast, kMost}, "95 years"},
                                           Wrong{"Long", {kNow, kNow + 366 * kDay}, "more than a year"},
                                           Wrong{"OfAnotherClock", {5, 6}, "more than a year away"},
                                           Wrong{"FarLater", {kNow + 366 * kDay, kNow + 366 * kDay}, "a year away"}),
                         [](const auto& wrong) { return std::string(wrong.param.name); });

TEST(TimeCheckTest, TakesWhatCanHaveHappened) {
  TimeCheck check("a file");
  check({-5, -5}, record);
  check({0, 0}, record);
  check({-5, 300 * kDay}, record);
  TimeCheck since_1970("a file");
  for (int i = 0; i < 1000; ++i) since_1970({kNow + i, kNow + i + 30 * kDay}, record);
}

TEST(TimeCheckTest, RefusesDurationsWhoseSumWouldOverflow) {
  TimeCheck check("a file");
  EXPECT_THAT(
      [&] {
        for (int i = 0; i < 400; ++i) check({0, kLongestProfile}, record);
      },
      ThrowsMessage<UsageError>(HasSubstr("with it, what was recorded takes more than 190 years")));
}

}  // namespace
}  // namespace pianola::profiling::time_check_test

#include <pianola/profile/read/microseconds.hpp>

#include <gtest/gtest.h>

#include <limits>

namespace pianola::profiling::microseconds_test {
namespace {

TEST(MicrosecondsTest, KeepNanosecondsThatADoubleWouldLose) {
  EXPECT_EQ(parse_microseconds("1790857026000000.123"), 1'790'857'026'000'000'123);
  EXPECT_EQ(parse_microseconds("4482283798715.578"), 4'482'283'798'715'578);
}

TEST(MicrosecondsTest, HaveAnyNumberOfDecimals) {
  EXPECT_EQ(parse_microseconds("7"), 7000);
  EXPECT_EQ(parse_microseconds("7.5"), 7500);
  EXPECT_EQ(parse_microseconds("0.05"), 50);
  EXPECT_EQ(parse_microseconds("-0.050"), -50);
  EXPECT_EQ(parse_microseconds("1.0014"), 1001);
  EXPECT_EQ(parse_microseconds("1.0015"), 1002);
  EXPECT_EQ(parse_microseconds("1.99999999999"), 2000);
}

TEST(MicrosecondsTest, MayHaveAnExponent) {
  EXPECT_EQ(parse_microseconds("1.5e3"), 1'500'000);
  EXPECT_EQ(parse_microseconds("2E-3"), 2);
}

TEST(MicrosecondsTest, AreNothingWhereTheTextIsNoNumberOrTooLarge) {
  for (const char* text : {"", "-", ".", "1.", ".5", "x", "1.x", "1e", "1.2.3", "--1", "+1", " 1", "1e300", "nan",
                           "3000000000000000", "99999999999999999999"}) {
    EXPECT_EQ(parse_microseconds(text), std::nullopt) << text;
  }
  EXPECT_EQ(parse_microseconds("2999999999999999.999"), kFurthestTime - 1);
}

TEST(MicrosecondsTest, AreWrittenWithThreeDecimals) {
  EXPECT_EQ(to_microseconds(0), "0.000");
  EXPECT_EQ(to_microseconds(1'790'857'026'000'000'123), "1790857026000000.123");
  EXPECT_EQ(to_microseconds(-50), "-0.050");
  EXPECT_EQ(to_microseconds(std::numeric_limits<Nanoseconds>::min()), "-9223372036854775.808");
}

}  // namespace
}  // namespace pianola::profiling::microseconds_test

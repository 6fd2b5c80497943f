#include <pianola/profile/quantities.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace pianola::profiling::quantities_test {
namespace {

TEST(QuantitiesTest, ADurationHasThreeDigitsInTheUnitThatSuitsIt) {
  EXPECT_EQ(duration_text(1), "1 ns");
  EXPECT_EQ(duration_text(999), "999 ns");
  EXPECT_EQ(duration_text(1000), "1.00 us");
  EXPECT_EQ(duration_text(12'340), "12.3 us");
  EXPECT_EQ(duration_text(842'000), "842 us");
  EXPECT_EQ(duration_text(12'300'000), "12.3 ms");
  EXPECT_EQ(duration_text(4'070'000'000), "4.07 s");
  EXPECT_EQ(duration_text(5'400'000'000'000), "5400 s");
}

TEST(QuantitiesTest, ADurationThatRoundsUpTakesTheNextUnitOrOneDigitLess) {
  EXPECT_EQ(duration_text(9'994), "9.99 us");
  EXPECT_EQ(duration_text(9'996), "10.0 us");
  EXPECT_EQ(duration_text(99'960), "100 us");
  EXPECT_EQ(duration_text(999'499), "999 us");
  EXPECT_EQ(duration_text(999'600), "1.00 ms");
  EXPECT_EQ(duration_text(999'600'000), "1.00 s");
}

TEST(QuantitiesTest, ADurationMayBeNothingOrNegative) {
  EXPECT_EQ(duration_text(0), "0 us");
  EXPECT_EQ(duration_text(-1'200'000), "-1.20 ms");
  EXPECT_EQ(duration_text(std::numeric_limits<Nanoseconds>::min()), "-9223372037 s");
}

TEST(QuantitiesTest, AShareIsAPercentage) {
  EXPECT_EQ(percent_text(0.42), "42 %");
  EXPECT_EQ(percent_text(0.042), "4.2 %");
  EXPECT_EQ(percent_text(0.0996), "10 %");
  EXPECT_EQ(percent_text(1.2), "120 %");
}

TEST(QuantitiesTest, AShareIsNeitherAllNorNothingUnlessItIs) {
  EXPECT_EQ(percent_text(0), "0 %");
  EXPECT_EQ(percent_text(0.0004), "<0.1 %");
  EXPECT_EQ(percent_text(0.9999), "99.9 %");
  EXPECT_EQ(percent_text(0.995), "99.5 %");
  EXPECT_EQ(percent_text(1), "100 %");
}

TEST(QuantitiesTest, ACountIsWholeWhereItIsLarge) {
  EXPECT_EQ(count_text(0), "0");
  EXPECT_EQ(count_text(612), "612");
  EXPECT_EQ(count_text(612.4), "612");
  EXPECT_EQ(count_text(12'345), "12,345");
  EXPECT_EQ(count_text(1'234'567), "1,234,567");
  EXPECT_EQ(count_text(-1234), "-1,234");
  EXPECT_EQ(count_text(-123), "-123");
}

TEST(QuantitiesTest, CountsAreSaidOfOneAndOfMany) {
  EXPECT_EQ(counted_text(1, "launch", "launches"), "1 launch");
  EXPECT_EQ(counted_text(0, "launch", "launches"), "0 launches");
  EXPECT_EQ(counted_text(1.5, "launch", "launches"), "1.5 launches");
  EXPECT_EQ(counted_text(12'345, "launch", "launches"), "12,345 launches");
}

TEST(QuantitiesTest, ACountHasDecimalsWhereItIsSmall) {
  EXPECT_EQ(count_text(2.5), "2.5");
  EXPECT_EQ(count_text(1.0 / 3), "0.33");
  EXPECT_EQ(count_text(12.34), "12.3");
  EXPECT_EQ(count_text(0.004), "<0.01");
}

TEST(QuantitiesTest, AFactorHasTwoOrThreeDigits) {
  EXPECT_EQ(factor_text(1.08), "1.08x");
  EXPECT_EQ(factor_text(1.996), "2.0x");
  EXPECT_EQ(factor_text(2.41), "2.4x");
  EXPECT_EQ(factor_text(12.3), "12x");
}

TEST(QuantitiesTest, WhatIsNoNumberIsADash) {
  EXPECT_EQ(percent_text(std::nan("")), "-");
  EXPECT_EQ(count_text(HUGE_VAL), "-");
  EXPECT_EQ(factor_text(0), "-");
  EXPECT_EQ(factor_text(std::nan("")), "-");
}

}  // namespace
}  // namespace pianola::profiling::quantities_test

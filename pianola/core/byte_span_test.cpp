#include <pianola/core/byte_span.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace pianola::byte_span_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(ByteSpanTest, HoldsItsFirstByteAndNotItsEnd) {
  const ByteSpan span{8, 16};
  EXPECT_EQ(span.size(), 8U);
  EXPECT_TRUE(span.contains(8));
  EXPECT_FALSE(span.contains(16));
  EXPECT_TRUE(span.overlaps({15, 20}));
  EXPECT_FALSE(span.overlaps({16, 20}));
  EXPECT_TRUE((ByteSpan{8, 8}.empty()));
}

TEST(ByteSpanTest, SpansThatOverlapOrTouchAreMergedInOrder) {
  EXPECT_THAT(merged({{20, 30}, {1, 4}, {4, 8}, {25, 27}, {40, 40}, {29, 35}}),
              ElementsAre(ByteSpan{1, 8}, ByteSpan{20, 35}));
  EXPECT_THAT(merged({}), IsEmpty());
}

TEST(ByteSpanTest, WhatLiesInNoOtherSpanIsLeft) {
  EXPECT_THAT(without({{0, 10}, {20, 30}, {40, 50}}, {{2, 4}, {8, 25}, {29, 30}, {60, 70}}),
              ElementsAre(ByteSpan{0, 2}, ByteSpan{4, 8}, ByteSpan{25, 29}, ByteSpan{40, 50}));
  EXPECT_THAT(without({{0, 10}}, {}), ElementsAre(ByteSpan{0, 10}));
  EXPECT_THAT(without({{5, 10}, {12, 14}}, {{0, 20}}), IsEmpty());
  EXPECT_EQ(total_bytes({{0, 10}, {20, 25}}), 15U);
}

}  // namespace
}  // namespace pianola::byte_span_test

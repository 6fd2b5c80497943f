#include <pianola/cuda/number_words.hpp>

#include <pianola/cuda/fake_kernels.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

namespace pianola::number_words_test {
namespace {

// What a kernel is given.
struct Arguments {
  std::uint64_t length = 64;
  double rate = 0;
  float factor = 0;
  float other = 0;
  std::uint32_t count = 0;
  std::uint16_t low = 0;
  std::uint16_t high = 0;
  std::uint32_t open[2] = {};
  friend bool operator==(const Arguments&, const Arguments&) = default;
};

Numeral real(double value) { return Numeral::of(value); }
Numeral integer(std::int64_t value) { return Numeral::of(value); }

// An operation that launches one kernel: what it gives it, of its numbers.
class NumberWordsTest : public ::testing::Test {
 protected:
  using Operation = std::function<Arguments(const std::vector<Numeral>& numbers)>;

  std::vector<NodeChange> captured(const Arguments& arguments) {
    return kernels_.between(captured_, kernels_.launch(add_, arguments));
  }
  // Finds the words of an operation that has been called with these numbers.
  std::optional<NumberWords> find(const Operation& operation, const std::vector<Numeral>& numbers,
                                  std::vector<bool> varies) {
    std::vector<NumberWords::Capture> trials;
    for (unsigned round = 0; round < 3; ++round) {
      auto others = NumberWords::trial(numbers, varies, round);
      trials.push_back({.changes = captured(operation(others)), .numbers = others});
    }
    const auto again = captured(operation(trials.front().numbers));
    changes_ = captured(operation(numbers));
    return NumberWords::find(std::move(trials), again, std::move(varies));
  }
  Arguments given() { return kernels_.given(changes_[0], captured_); }

  FakeDriver::Function add_{.symbol = "add", .parameters = {{0, sizeof(Arguments)}}};
  FakeKernels<Arguments> kernels_;
  CUgraphNode captured_ = kernels_.launch(add_, {});
  std::vector<NodeChange> changes_;
};

TEST_F(NumberWordsTest, EachFormIsFound) {
  const auto operation = [](const std::vector<Numeral>& numbers) {
    return Arguments{.length = 64,
                     .rate = numbers[0].value,
                     .factor = -static_cast<float>(numbers[0].value),
                     .other = 1 / static_cast<float>(numbers[1].value),
                     .count = static_cast<std::uint32_t>(numbers[2].value)};
  };
  const auto words = find(operation, {real(0.13), real(0.77), integer(41)}, {true, true, true});
  ASSERT_TRUE(words);
  EXPECT_TRUE(words->fits(changes_, std::vector{real(0.13), real(0.77), integer(41)}));
  EXPECT_FALSE(words->fits(changes_, std::vector{real(0.14), real(0.77), integer(41)}));
  const std::vector<Numeral> now = {real(0.29), real(0.0071), integer(977)};
  ASSERT_TRUE(words->follow(changes_, now));
  EXPECT_EQ(given(), operation(now));
}

TEST_F(NumberWordsTest, NumbersThatAreAlwaysTheSameAreToldApart) {
  const auto operation = [](const std::vector<Numeral>& numbers) {
    return Arguments{.factor = static_cast<float>(numbers[1].value), .other = static_cast<float>(numbers[0].value)};
  };
  const auto words = find(operation, {real(0.9), real(0.9)}, {true, true});
  ASSERT_TRUE(words);
  const std::vector<Numeral> now = {real(0.8), real(0.7)};
  ASSERT_TRUE(words->follow(changes_, now));
  EXPECT_EQ(given(), operation(now));
}

TEST_F(NumberWordsTest, ARoundingThatHidesAChangeIsNoSurprise) {
  // A word of two bytes, which does not change where the number does but a little.
  const auto operation = [](const std::vector<Numeral>& numbers) {
    const auto single = static_cast<float>(numbers[0].value);
    std::uint32_t bits = 0;
    std::memcpy(&bits, &single, sizeof bits);
    bits += 0x7fff + (bits >> 16 & 1);  // to the nearest, to even
    return Arguments{.factor = single, .low = static_cast<std::uint16_t>(bits >> 16)};
  };
  const auto words = find(operation, {real(0.3)}, {true});
  ASSERT_TRUE(words);
  for (const double value : {0.3001, 0.3002, 7.5, -1.25e-3}) {
    const std::vector<Numeral> now = {real(value)};
    ASSERT_EQ(words->follow(changes_, now), value > 0) << value;
    if (value > 0) {
      EXPECT_EQ(given(), operation(now)) << value;
    }
  }
}

TEST_F(NumberWordsTest, AFormThatNobodyKnowsIsNotFollowed) {
  const auto squared = [](const std::vector<Numeral>& numbers) {
    return Arguments{.factor = static_cast<float>(numbers[0].value * numbers[0].value)};
  };
  EXPECT_FALSE(find(squared, {real(0.3)}, {true}));
}

TEST_F(NumberWordsTest, ANumberThatNoWordHoldsIsNotFollowed) {
  const auto constant = [](const std::vector<Numeral>&) { return Arguments{.factor = 0.5}; };
  EXPECT_FALSE(find(constant, {real(0.3)}, {true}));
}

TEST_F(NumberWordsTest, ANumberThatNeverChangedHasToStay) {
  const auto operation = [](const std::vector<Numeral>& numbers) {
    return Arguments{.factor = static_cast<float>(numbers[0].value), .other = static_cast<float>(numbers[1].value)};
  };
  const auto words = find(operation, {real(0.3), real(0.01)}, {true, false});
  ASSERT_TRUE(words);
  EXPECT_TRUE(words->follow(changes_, std::vector{real(0.4), real(0.01)}));
  EXPECT_FALSE(words->follow(changes_, std::vector{real(0.4), real(0.02)}));
}

TEST_F(NumberWordsTest, NumbersOfTheirOwnAreNotFollowed) {
  const auto operation = [](const std::vector<Numeral>& numbers) {
    return Arguments{.factor = static_cast<float>(numbers[0].value)};
  };
  const auto words = find(operation, {real(0.3)}, {true});
  ASSERT_TRUE(words);
  for (const double value : {0.0, 1.0, 2.0, 3.0, 0.5, -0.3, HUGE_VAL, std::nan(""), 1e-40, 1e33}) {
    EXPECT_FALSE(words->follow(changes_, std::vector{real(value)})) << value;
  }
  EXPECT_FALSE(words->follow(changes_, std::vector{integer(7)}));
  EXPECT_FALSE(words->follow(changes_, std::vector{Numeral{}}));
}

TEST_F(NumberWordsTest, WhatNobodyFilledIsNoNumber) {
  std::uint32_t stack = 7;
  const auto operation = [&](const std::vector<Numeral>& numbers) {
    Arguments arguments{.factor = static_cast<float>(numbers[0].value)};
    for (std::uint32_t& open : arguments.open) open = (stack *= 2654435761U);
    return arguments;
  };
  const auto words = find(operation, {real(0.3)}, {true});
  ASSERT_TRUE(words);
  ASSERT_TRUE(words->follow(changes_, std::vector{real(0.7)}));
  EXPECT_EQ(given().factor, 0.7F);
}

}  // namespace
}  // namespace pianola::number_words_test

#include <pianola/cuda/followed_call.hpp>

#include <pianola/cuda/fake_kernels.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

namespace pianola::followed_call_test {
namespace {

constexpr std::uint64_t kCache = 0x7f00'0000'0000;

// An operation that multiplies a row of a cache by a number: another kernel where the row is not aligned to 16 bytes.
class FollowedCallTest : public ::testing::Test {
 protected:
  struct Arguments {
    std::uint64_t row = 0;
    float factor = 0;
    std::uint32_t count = 64;
  };

  static CallArguments call(std::uint64_t at, double factor) {
    return {.places = {{.address = kCache + at, .memory = {.begin = kCache, .end = kCache + 65'536}}},
            .numbers = {Numeral::of(factor)}};
  }
  CUgraphNode kernel(const CallArguments& call) {
    ++captures_;
    const std::uint64_t row = call.places[0].address;
    const bool is_wide = row % 16 == 0;
    return kernels_.launch(is_wide ? wide_ : narrow_, {.row = row, .factor = static_cast<float>(call.numbers[0].value)},
                           is_wide ? 1 : 4);
  }
  std::vector<NodeChange> captured(const CallArguments& call) {
    return kernels_.between(captured_, kernel(call), OtherFunctions::allowed);
  }
  // As a graph does for each call.
  void give(const CallArguments& call) {
    FollowedCall* followed = nullptr;
    for (FollowedCall& one : all_) {
      if (one.is_for(call)) followed = &one;
    }
    if (followed == nullptr) followed = &all_.emplace_back(call);
    if (!followed->follow(call)) {
      auto again = followed->wants_again(call) ? captured(call) : std::vector<NodeChange>();
      followed->take(captured(call), again, call);
      if (followed->wants_trials()) learn(*followed, call);
    }
    given_ = kernels_.given(followed->changes()[0], captured_);
  }
  void learn(FollowedCall& followed, const CallArguments& call) {
    followed.note_trials();
    std::vector<NumberWords::Capture> trials;
    for (unsigned round = 0; round < 3; ++round) {
      const CallArguments other{.places = call.places, .numbers = followed.trial(round)};
      trials.push_back({.changes = captured(other), .numbers = other.numbers});
    }
    const auto again = captured({.places = call.places, .numbers = followed.trial(0)});
    followed.learn(std::move(trials), again);
  }
  void expect_given(const CallArguments& call) const {
    EXPECT_EQ(given_.row, call.places[0].address);
    EXPECT_EQ(given_.factor, static_cast<float>(call.numbers[0].value));
    EXPECT_EQ(given_.count, 64U);
  }

  FakeDriver::Function wide_{.symbol = "wide", .parameters = {{0, sizeof(Arguments)}}};
  FakeDriver::Function narrow_{.symbol = "narrow", .parameters = {{0, sizeof(Arguments)}}};
  FakeKernels<Arguments> kernels_;
  int captures_ = 0;
  CUgraphNode captured_ = kernel(call(0, 0.7));
  std::deque<FollowedCall> all_;
  Arguments given_;
};

TEST_F(FollowedCallTest, PlacesAndNumbersThatChangeTogetherNeedNoCaptureAfterAWhile) {
  for (std::uint64_t i = 1; i < 40; ++i) {
    const CallArguments now = call(i * 64, 0.7 + static_cast<double>(i) / 300);
    const int before = captures_;
    give(now);
    expect_given(now);
    if (i > 8) {
      EXPECT_EQ(captures_, before) << i;
    }
  }
}

TEST_F(FollowedCallTest, EachAlignmentHasItsKernel) {
  int late = 0;
  for (std::uint64_t i = 1; i < 400; ++i) {
    const CallArguments now = call(i * 4, 0.7);
    const int before = captures_;
    give(now);
    expect_given(now);
    if (i > 100) late += captures_ - before;
  }
  EXPECT_EQ(late, 0);
  EXPECT_EQ(all_.size(), 16U);
}

TEST_F(FollowedCallTest, NumbersOfTheirOwnAreCapturedAndDoNotEndIt) {
  for (const double factor : {0.8, 0.9, 1.1, 1.2}) give(call(64, factor));
  int before = captures_;
  give(call(64, 1.3));
  EXPECT_EQ(captures_, before);
  give(call(64, 2.0));
  expect_given(call(64, 2.0));
  EXPECT_GT(captures_, before);
  give(call(64, 1.4));
  before = captures_;
  give(call(64, 1.5));
  expect_given(call(64, 1.5));
  EXPECT_EQ(captures_, before);
}

}  // namespace
}  // namespace pianola::followed_call_test

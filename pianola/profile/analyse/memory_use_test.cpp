#include <pianola/profile/analyse/memory_use.hpp>

#include <pianola/core/error.hpp>
#include <pianola/profile/testing/timeline_builder.hpp>
#include <pianola/profile/testing/training_timeline.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

namespace pianola::memory_use_test {
namespace {

using profiling::TimelineBuilder;
using profiling::us;
using profiling::testing::training_timeline;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr std::uint64_t kMiB = 1U << 20U;

// Activations of 4 layers are 32 MiB. When the last backward pass begins, 8 of them are left; 48 of gradients, 16 of the
// gradients of two inputs and 1 of scratch are there as well. The optimizer takes less: 48 and 24.
TEST(MemoryUseTest, OfAnIterationIsWhatItAsksForItself) {
  const Analysis analysis = analyse(training_timeline({.memory = true}));
  ASSERT_EQ(analysis.by, IterationsBy::repetition);
  ASSERT_TRUE(analysis.memory);
  EXPECT_EQ(analysis.memory->own, (8 + 48 + 16 + 1) * kMiB);
}

// 48 MiB of gradients of the iteration before were there when it began, so that no more than 25 were added to those.
TEST(MemoryUseTest, OldGradientsThatAreFreedDoNotHideNewOnes) {
  const Timeline timeline = training_timeline({.memory = true});
  const Analysis analysis = analyse(timeline);
  const Nanoseconds begin = analysis.iterations[1].host.begin;
  const auto at_begin = std::ranges::lower_bound(timeline.memory, begin - 1000, {}, &MemoryEvent::time);
  ASSERT_EQ((at_begin - 1)->allocated, (100 + 48) * kMiB);
  EXPECT_EQ(analysis.memory->allocated, (100 + 73) * kMiB);
  EXPECT_EQ(analysis.memory->reserved, 512 * kMiB);
}

// Of 2048 MiB torch holds 512; parameters and gradients, 148, are in use in the end.
TEST(MemoryUseTest, WhatIsLeftIsAtMostWhatTorchLeavesOfTheDevice) {
  const Analysis analysis = analyse(training_timeline({.memory = true, .device = 2048}));
  ASSERT_TRUE(analysis.memory && analysis.memory->left);
  EXPECT_TRUE(analysis.memory->left_at_most);
  EXPECT_EQ(analysis.memory->left->of_driver, (2048 - 512) * kMiB);
  EXPECT_EQ(analysis.memory->left->cached, (512 - 148) * kMiB);
  EXPECT_EQ(analysis.memory->left->returnable, (512 - 148) * kMiB);
}

TEST(MemoryUseTest, WhatWasFoundLeftCountsBeforeThat) {
  Timeline timeline = training_timeline({.memory = true, .device = 2048});
  timeline.devices.front().left = memory::FreeMemory{.of_driver = 7 * kMiB, .cached = 3, .returnable = 2};
  const Analysis analysis = analyse(timeline);
  EXPECT_FALSE(analysis.memory->left_at_most);
  EXPECT_EQ(analysis.memory->left->of_driver, 7 * kMiB);
  EXPECT_EQ(analysis.memory->left->cached, 3U);
  EXPECT_EQ(analysis.memory->left->returnable, 2U);
}

TEST(MemoryUseTest, WithoutTheDevicesMemoryWhatIsLeftIsUnknown) {
  EXPECT_FALSE(analyse(training_timeline({.memory = true})).memory->left);
  Timeline timeline = training_timeline({.memory = true, .device = 2048});
  timeline.devices.front().device = 1;
  EXPECT_FALSE(analyse(timeline).memory->left) << "it is that of another device";
}

TEST(MemoryUseTest, WithoutEventsOfTheAllocatorIsUnknown) { EXPECT_FALSE(analyse(training_timeline({})).memory); }

// Ranges begin the iterations: 300 bytes, then 500, then 100; the block of 4000 bytes is older than all of them.
TimelineBuilder three_steps() {
  TimelineBuilder t;
  t.allocates(9, 4000, 1);
  for (const auto& [at, bytes] : {std::pair(10, 300), std::pair(20, 500), std::pair(30, 100)}) {
    t.annotation("step", at, 9).allocates(1, bytes, at + 1).kernel("k", at + 3, 2).launched(at + 2, 1);
    t.frees(1, bytes, at + 8);
  }
  return t;
}

TEST(MemoryUseTest, IsTheMedianOverIterations) {
  const Analysis analysis = analyse(three_steps().build(), {.range = "step"});
  ASSERT_EQ(analysis.iterations.size(), 3U);
  EXPECT_EQ(analysis.memory->own, 300U);
  EXPECT_EQ(analysis.memory->allocated, 5500U) << "1000 from the begin on, 4000 and 500";
}

TEST(MemoryUseTest, IsOfTheDeviceThatIsLookedAt) {
  TimelineBuilder t = three_steps();
  t.on_device(1).allocates(7, 50'000, 12).on_device(-1).allocates(8, 70'000, 12);
  const Analysis analysis = analyse(t.build(), {.range = "step"});
  EXPECT_EQ(analysis.device, 0);
  EXPECT_EQ(analysis.memory->own, 300U);
}

// Where iterations allocate nothing, what was so before still holds.
TEST(MemoryUseTest, IterationsThatAllocateNothingTakeNothing) {
  TimelineBuilder t;
  t.allocates(9, 4000, 1);
  for (const int at : {10, 20, 30}) t.annotation("step", at, 9).kernel("k", at + 3, 2).launched(at + 2, 1);
  const Analysis analysis = analyse(t.build(), {.range = "step"});
  ASSERT_TRUE(analysis.memory);
  EXPECT_EQ(analysis.memory->own, 0U);
  EXPECT_EQ(analysis.memory->allocated, 5000U);
  EXPECT_EQ(analysis.memory->reserved, 4096U);
}

// Torch counts the CPU's memory from the begin of the profiler on, so that a total says nothing.
TEST(MemoryUseTest, OfACpuHasNoTotals) {
  TimelineBuilder t;
  t.on_device(-1);
  for (const int at : {10, 20, 30}) {
    t.annotation("step", at, 9).cpu_work("aten::add", at + 1, 4).allocates(1, 300, at + 2).frees(1, 300, at + 7);
  }
  const Analysis analysis = analyse(t.build(), {.range = "step"});
  ASSERT_EQ(analysis.device, -1);
  EXPECT_EQ(analysis.memory->own, 300U);
  EXPECT_EQ(analysis.memory->allocated, 0U);
  EXPECT_EQ(analysis.memory->reserved, 0U);
}

TEST(MemoryUseTest, EventsOfTheAllocatorHaveToBeSorted) {
  Timeline timeline = training_timeline({.memory = true});
  std::swap(timeline.memory.front(), timeline.memory.back());
  EXPECT_THAT([&] { (void)analyse(timeline); },
              ThrowsMessage<UsageError>(HasSubstr("not in the order in which they began")));
}

}  // namespace
}  // namespace pianola::memory_use_test

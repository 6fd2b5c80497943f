#include <pianola/schedule/buffer_plan.hpp>

#include <pianola/core/error.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <tuple>
#include <vector>

namespace pianola::buffer_plan_test {
namespace {

using ::testing::ElementsAre;
using ::testing::ThrowsMessage;

constexpr auto kInput = BufferKind::input;
constexpr auto kOutput = BufferKind::output;
constexpr auto kOutputGradient = BufferKind::output_gradient;
constexpr auto kInputGradient = BufferKind::input_gradient;

TEST(BufferPlan, NeedsAsManySlotsAsMicrobatchesAreInFlight) {
  const BufferPlan plan(Schedule::parse("1,1,-1,1,-1,-1"));
  EXPECT_EQ(plan.chunks(), 1);
  EXPECT_EQ(plan.microbatches(), 3);
  EXPECT_EQ(plan.slots(1), 2);
  EXPECT_EQ(plan.slot(1, 1), 0);
  EXPECT_EQ(plan.slot(1, 2), 1);
  EXPECT_EQ(plan.slot(1, 3), 0);
}

TEST(BufferPlan, TakesTheFirstOfSeveralFreeSlots) {
  const BufferPlan plan(Schedule::parse("1,1,1,-1,-1,1,1,-1,-1,-1"));
  EXPECT_EQ(plan.slots(1), 3);
  EXPECT_EQ(plan.slot(1, 4), 0);
  EXPECT_EQ(plan.slot(1, 5), 1);
}

TEST(BufferPlan, TellsWhenEachBufferIsInUse) {
  const BufferPlan plan(Schedule::parse("1,1,-1,1,-1,-1"));
  EXPECT_THAT(
      plan.lifetimes(),
      ElementsAre(BufferLifetime{kInput, 1, 1, 0, 1, 3}, BufferLifetime{kOutput, 1, 1, 0, 1, 3},
                  BufferLifetime{kOutputGradient, 1, 1, 0, 3, 3}, BufferLifetime{kInputGradient, 1, 1, 0, 3, 3},
                  BufferLifetime{kInput, 1, 2, 1, 2, 5}, BufferLifetime{kOutput, 1, 2, 1, 2, 5},
                  BufferLifetime{kOutputGradient, 1, 2, 0, 5, 5}, BufferLifetime{kInputGradient, 1, 2, 1, 5, 6},
                  BufferLifetime{kInput, 1, 3, 0, 4, 6}, BufferLifetime{kOutput, 1, 3, 0, 4, 6},
                  BufferLifetime{kOutputGradient, 1, 3, 0, 6, 6}, BufferLifetime{kInputGradient, 1, 3, 0, 6, 6}));
}

TEST(BufferPlan, KeepsASlotUntilItsDelayedWeightGradients) {
  const BufferPlan plan(Schedule::parse("1,-1,1,-1,-1.5,-1.5"));
  EXPECT_EQ(plan.slots(1), 2);
  EXPECT_THAT(
      plan.lifetimes(),
      ElementsAre(BufferLifetime{kInput, 1, 1, 0, 1, 5}, BufferLifetime{kOutput, 1, 1, 0, 1, 5},
                  BufferLifetime{kOutputGradient, 1, 1, 0, 2, 2}, BufferLifetime{kInputGradient, 1, 1, 0, 2, 6},
                  BufferLifetime{kInput, 1, 2, 1, 3, 6}, BufferLifetime{kOutput, 1, 2, 1, 3, 6},
                  BufferLifetime{kOutputGradient, 1, 2, 0, 4, 4}, BufferLifetime{kInputGradient, 1, 2, 1, 4, 6}));
}

TEST(BufferPlan, KeepsInputGradientsUntilTheSlotIsTakenAgain) {
  // Other chunks' steps lie between the backward and the next forward of the slot.
  const BufferPlan plan(Schedule::parse("1,2,-2,-1,2,-2,1,-1"));
  std::vector<BufferLifetime> found;
  for (const BufferLifetime& life : plan.lifetimes()) {
    if (life.kind == kInputGradient && life.chunk == 1) found.push_back(life);
  }
  EXPECT_THAT(
      found, ElementsAre(BufferLifetime{kInputGradient, 1, 1, 0, 4, 6}, BufferLifetime{kInputGradient, 1, 2, 0, 8, 8}));
}

TEST(BufferPlan, CountsBuffers) {
  const BufferPlan plan(Schedule::parse("1,1,2,-2,2,-2,-1,-1"));  // depth 2 and 1
  EXPECT_EQ(plan.unique_buffers(kInput), 3);
  EXPECT_EQ(plan.unique_buffers(kOutput), 3);
  EXPECT_EQ(plan.unique_buffers(kOutputGradient), 2);
  EXPECT_EQ(plan.unique_buffers(kInputGradient), 3);
  EXPECT_EQ(plan.unique_buffers(), 11);
  EXPECT_EQ(plan.buffers_without_reuse(kOutputGradient), 4);
  EXPECT_EQ(plan.buffers_without_reuse(), 16);
}

TEST(BufferPlan, OfAnEmptyScheduleIsEmpty) {
  const BufferPlan plan{Schedule()};
  EXPECT_EQ(plan.chunks(), 0);
  EXPECT_TRUE(plan.lifetimes().empty());
  EXPECT_EQ(plan.unique_buffers(), 0);
  EXPECT_EQ(plan.buffers_without_reuse(), 0);
  EXPECT_THAT([&] { (void)plan.slots(1); }, ThrowsMessage<UsageError>("chunk 1 was asked for, but the plan is empty"));
}

TEST(BufferPlan, RefusesToTellOfChunksAndMicrobatchesThatItLacks) {
  const BufferPlan plan(Schedule::parse("1,2,1,2,-2,-1,-2,-1"));
  EXPECT_THAT([&] { (void)plan.slots(3); }, ThrowsMessage<UsageError>("chunk must be 1 to 2, got 3"));
  EXPECT_THAT([&] { (void)plan.slot(0, 1); }, ThrowsMessage<UsageError>("chunk must be 1 to 2, got 0"));
  EXPECT_THAT([&] { (void)plan.slot(1, 0); }, ThrowsMessage<UsageError>("microbatch must be 1 to 2, got 0"));
  EXPECT_THAT([&] { (void)plan.slot(1, 3); }, ThrowsMessage<UsageError>("microbatch must be 1 to 2, got 3"));
}

TEST(BufferPlan, DoesNotGrowWithTheMicrobatches) {
  for (const int pipeline_size : {2, 3, 4}) {
    for (const int virtual_size : {1, 2, 3}) {
      for (int rank = 0; rank < pipeline_size; ++rank) {
        PipelineShape shape{.pipeline_size = pipeline_size, .virtual_size = virtual_size, .rank = rank};
        shape.microbatches = 3 * pipeline_size;
        const BufferPlan some(Schedule::interleaved(shape));
        shape.microbatches = 6 * pipeline_size;
        const BufferPlan many(Schedule::interleaved(shape));
        const std::string name = std::to_string(pipeline_size) + " ranks, " + std::to_string(virtual_size) +
                                 " chunks, rank " + std::to_string(rank);
        EXPECT_EQ(many.unique_buffers(), some.unique_buffers()) << name;
        EXPECT_EQ(many.buffers_without_reuse(), 2 * some.buffers_without_reuse()) << name;
      }
    }
  }
}

// Any valid order: at each step a chunk that may go forward or backward does.
Schedule random_schedule(std::mt19937& random) {
  const auto draw = [&](std::size_t below) { return std::uniform_int_distribution<std::size_t>(0, below - 1)(random); };
  const std::size_t microbatches = 1 + draw(9);
  std::vector<std::size_t> forwards(1 + draw(4), 0);
  std::vector<std::size_t> backwards = forwards;
  std::vector<double> order;
  while (order.size() < 2 * microbatches * forwards.size()) {
    const std::size_t chunk = draw(forwards.size());
    const bool forward = draw(2) == 0;
    if (forward ? forwards[chunk] == microbatches : backwards[chunk] == forwards[chunk]) continue;
    ++(forward ? forwards : backwards)[chunk];
    order.push_back(static_cast<double>(chunk + 1) * (forward ? 1 : -1));
  }
  return Schedule::from_order(order);
}

TEST(BufferPlan, NeverGivesABufferToTwoMicrobatchesAtOnce) {
  std::mt19937 random(7);
  for (int round = 0; round < 500; ++round) {
    const Schedule schedule = random_schedule(random);
    const BufferPlan plan(schedule);
    using Buffer = std::tuple<int, BufferKind, int>;
    std::map<Buffer, int> last_steps;  // microbatches come in order, so each buffer's lifetimes do too
    for (const BufferLifetime& life : plan.lifetimes()) {
      int& last = last_steps[{life.chunk, life.kind, life.buffer}];
      EXPECT_LT(last, life.first_step) << schedule.to_string();
      EXPECT_LE(life.first_step, life.last_step) << schedule.to_string();
      last = life.last_step;
    }
    EXPECT_EQ(last_steps.size(), static_cast<std::size_t>(plan.unique_buffers())) << schedule.to_string();
    for (int chunk = 1; chunk <= schedule.chunks(); ++chunk) {
      EXPECT_EQ(plan.slots(chunk), schedule.depth(chunk)) << schedule.to_string();
    }
  }
}

}  // namespace
}  // namespace pianola::buffer_plan_test

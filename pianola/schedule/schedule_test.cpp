#include <pianola/schedule/schedule.hpp>

#include <pianola/core/error.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace pianola::schedule_test {
namespace {

using ::testing::ElementsAre;
using ::testing::ThrowsMessage;

static_assert(std::is_copy_constructible_v<Schedule> && std::is_nothrow_move_constructible_v<Schedule>);

constexpr auto F = Direction::forward;
constexpr auto B = Direction::backward;

template <class ExpectedError>
void expect_refusal(const std::string& order, const std::string& message, const ScheduleOptions& options = {}) {
  EXPECT_THAT([&] { (void)Schedule::parse(order, options); }, ThrowsMessage<ExpectedError>(message)) << order;
}

TEST(Schedule, GivesEachBackwardTheOldestMicrobatchInFlight) {
  const Schedule schedule = Schedule::parse("1,2,1,2,-2,-1,-2,-1");
  EXPECT_THAT(schedule.steps(),
              ElementsAre(ScheduleStep{F, 1, 1}, ScheduleStep{F, 2, 1}, ScheduleStep{F, 1, 2}, ScheduleStep{F, 2, 2},
                          ScheduleStep{B, 2, 1}, ScheduleStep{B, 1, 1}, ScheduleStep{B, 2, 2}, ScheduleStep{B, 1, 2}));
}

TEST(Schedule, KnowsItsSizes) {
  const Schedule schedule = Schedule::parse("1,1,2,-2,1,2,-1,-2,-1,2,-2,-1", {.layers_per_chunk = {3, 1}});
  EXPECT_FALSE(schedule.empty());
  EXPECT_EQ(schedule.chunks(), 2);
  EXPECT_EQ(schedule.microbatches(), 3);
  EXPECT_EQ(schedule.layers(1), 3);
  EXPECT_EQ(schedule.layers(2), 1);
  EXPECT_EQ(schedule.total_layers(), 4);
  EXPECT_EQ(schedule.first_layer(1), 0);
  EXPECT_EQ(schedule.first_layer(2), 3);
  EXPECT_EQ(schedule.depth(1), 3);
  EXPECT_EQ(schedule.depth(2), 1);
}

TEST(Schedule, TakesOneNumberOfLayersForAllChunks) {
  EXPECT_EQ(Schedule::parse("1,2,-2,-1").total_layers(), 2);
  EXPECT_EQ(Schedule::parse("1,2,-2,-1", {.layers_per_chunk = {4}}).total_layers(), 8);
}

TEST(Schedule, IsEmptyByDefaultAndAfterItWasMovedAway) {
  Schedule schedule;
  EXPECT_TRUE(schedule.empty());
  EXPECT_EQ(schedule.chunks(), 0);
  EXPECT_EQ(schedule.microbatches(), 0);
  EXPECT_EQ(schedule.total_layers(), 0);
  EXPECT_EQ(schedule.to_string(), "");
  schedule = Schedule::parse("1,-1");
  const Schedule copy = schedule;
  const Schedule moved = std::move(schedule);
  EXPECT_TRUE(schedule.empty());
  EXPECT_EQ(schedule.microbatches(), 0);
  EXPECT_EQ(copy, moved);
  EXPECT_NE(copy, Schedule());
}

TEST(Schedule, ReadsBlanksBracketsSignsAndDecimals) {
  const Schedule schedule = Schedule::parse("1,2,-2,-1");
  for (const char* order : {"[1, 2, -2, -1]", " [ 1 ,2,\t-2,-1 ]\n", "+1,+2,-2,-1", "1.0,2.0,-2.0,-1.0"}) {
    EXPECT_EQ(Schedule::parse(order), schedule) << order;
  }
  EXPECT_EQ(Schedule::from_order(std::vector<double>{1, 2, -2, -1}), schedule);
}

TEST(Schedule, WritesWhatItReads) {
  for (const char* order : {"1,-1", "1,2,1,2,-2,-1,-2,-1", "2,1,-1,-2", "1,1,-1,1,-1,-1"}) {
    EXPECT_EQ(Schedule::parse(order).to_string(), order);
  }
}

TEST(Schedule, DescribesItsSteps) {
  EXPECT_EQ(describe(ScheduleStep{F, 2, 1}), "forward of chunk 2, microbatch 1");
  EXPECT_EQ(describe(ScheduleStep{B, 1, 12}), "backward of chunk 1, microbatch 12");
}

TEST(Schedule, RefusesAnOrderWithoutEntries) {
  for (const char* order : {"", "  ", "[]", "[ ]"}) {
    expect_refusal<ScheduleError>(order,
                                  "the schedule has no entries\n"
                                  "  fix:   write c for the forward and -c for the backward of chunk c, from 1 on; "
                                  "-c-0.5 for delayed gradients of its weights");
  }
}

TEST(Schedule, RefusesWhatIsNotANumber) {
  const auto message = [](const char* what, const char* where) {
    return std::string(what) + "\n  where: " + where + "\n  fix:   separate whole numbers by commas, as in 1,2,-2,-1";
  };
  expect_refusal<ScheduleError>("1,x,2", message("'x' is not a number", "entry 2 of 3"));
  expect_refusal<ScheduleError>("1 -1", message("'1 -1' is not a number", "entry 1 of 1"));
  expect_refusal<ScheduleError>("[1,-1", message("'[1' is not a number", "entry 1 of 2"));
  expect_refusal<ScheduleError>("1,1e0", message("'1e0' is not a number", "entry 2 of 2"));
  expect_refusal<ScheduleError>("1,+-1", message("'+-1' is not a number", "entry 2 of 2"));
  expect_refusal<ScheduleError>("1,-1,", message("an entry of the schedule is empty", "entry 3 of 3"));
  expect_refusal<ScheduleError>("1, ,-1", message("an entry of the schedule is empty", "entry 2 of 3"));
}

TEST(Schedule, RefusesNumbersThatNameNoChunk) {
  const auto message = [](const char* value, const char* where) {
    return "an entry must be the number of a chunk, got " + std::string(value) + "\n  where: " + where +
           "\n  fix:   write c for the forward and -c for the backward of chunk c, from 1 on; -c-0.5 for delayed "
           "gradients of its weights";
  };
  expect_refusal<ScheduleError>("1,0,-1", message("0", "entry 2 of 3"));
  expect_refusal<ScheduleError>("1,1.25", message("1.25", "entry 2 of 2"));
  expect_refusal<ScheduleError>("1,1.5", message("1.5", "entry 2 of 2"));
  expect_refusal<ScheduleError>("1,-0.5", message("-0.5", "entry 2 of 2"));
  expect_refusal<ScheduleError>("1,nan", message("nan", "entry 2 of 2"));
  expect_refusal<ScheduleError>("99999999999,-1", message("99999999999", "entry 1 of 2"));
  const std::vector<double> infinite = {1, -std::numeric_limits<double>::infinity()};
  EXPECT_THAT([&] { (void)Schedule::from_order(infinite); },
              ThrowsMessage<ScheduleError>(message("-inf", "entry 2 of 2")));
}

TEST(Schedule, GivesDelayedWeightGradientsTheOldestMicrobatchThatLeftThem) {
  const Schedule schedule = Schedule::parse("1,1,-1,-1,-1.5,-1.5");
  EXPECT_EQ(schedule.steps()[4], (ScheduleStep{Direction::weight_gradients, 1, 1}));
  EXPECT_EQ(schedule.steps()[5], (ScheduleStep{Direction::weight_gradients, 1, 2}));
  EXPECT_EQ(describe(schedule.steps()[5]), "weight gradients of chunk 1, microbatch 2");
  EXPECT_EQ(schedule.microbatches(), 2);
}

TEST(Schedule, CountsAMicrobatchAsInFlightUntilItsWeightGradients) {
  const Schedule schedule = Schedule::parse("1,2,-2,-1,1,2,-2,-1,-1.5,-1.5");
  EXPECT_TRUE(schedule.delays_weight_gradients(1));
  EXPECT_FALSE(schedule.delays_weight_gradients(2));
  EXPECT_EQ(schedule.depth(1), 2);
  EXPECT_EQ(schedule.depth(2), 1);
  EXPECT_EQ(schedule.to_string(), "1,2,-2,-1,1,2,-2,-1,-1.5,-1.5");
}

TEST(Schedule, RefusesWeightGradientsThatNoBackwardLeft) {
  expect_refusal<ScheduleError>("1,-1.5,-1",
                                "-1.5 stands for weight gradients of chunk 1 that no backward has left to do: it had 0 "
                                "backwards\n  where: entry 2 of 3\n  fix:   put the backward, -1, before it");
  expect_refusal<ScheduleError>("1,-1,-1.5,-1.5",
                                "-1.5 stands for weight gradients of chunk 1 that no backward has left to do: it had 1 "
                                "backward and as many weight "
                                "gradients\n  where: entry 4 of 4\n  fix:   put the backward, -1, before it");
}

TEST(Schedule, RefusesWeightGradientsOfSomeMicrobatchesOnly) {
  expect_refusal<ScheduleError>("1,1,-1,-1.5,-1",
                                "chunk 1 has 2 backwards but 1 gradient of weights\n"
                                "  where: entry 5 of 5, backward of chunk 1, microbatch 2\n"
                                "  fix:   add -1.5 after it, 1 time: all microbatches of a chunk delay them, or none");
}

TEST(Schedule, RefusesABackwardWithoutAMicrobatchInFlight) {
  expect_refusal<ScheduleError>("-1,1",
                                "-1 is a backward of chunk 1 before its first forward\n"
                                "  where: entry 1 of 2\n"
                                "  fix:   put the forward, 1, before it");
  expect_refusal<ScheduleError>("1,-2",
                                "-2 is a backward of chunk 2 before its first forward\n"
                                "  where: entry 2 of 2\n"
                                "  fix:   put the forward, 2, before it");
  expect_refusal<ScheduleError>(
      "1,1,2,-1,-1,-1,1,2,2,-2,-2,-2",
      "-1 is a backward of chunk 1, of which no microbatch is in flight: it had 2 forwards and as many backwards\n"
      "  where: entry 6 of 12\n"
      "  fix:   put the forward, 1, before it");
}

TEST(Schedule, RefusesAForwardWithoutABackward) {
  expect_refusal<ScheduleError>("1,2,1,-2,-1",
                                "chunk 1 has 2 forwards but 1 backward\n"
                                "  where: entry 3 of 5, forward of chunk 1, microbatch 2\n"
                                "  fix:   add -1 after it, 1 time");
  expect_refusal<ScheduleError>("1,2,2,-1",
                                "chunk 2 has 2 forwards but 0 backwards\n"
                                "  where: entry 2 of 4, forward of chunk 2, microbatch 1\n"
                                "  fix:   add -2 after it, 2 times");
}

TEST(Schedule, RefusesAGapInTheChunks) {
  expect_refusal<ScheduleError>("1,3,-3,-1",
                                "chunk 2 is missing, but chunk 3 occurs\n"
                                "  where: entry 2 of 4\n"
                                "  fix:   number the chunks of this rank 1, 2, 3 ... without gaps");
  expect_refusal<ScheduleError>("2000000000,-2000000000",
                                "chunk 1 is missing, but chunk 2000000000 occurs\n"
                                "  where: entry 1 of 2\n"
                                "  fix:   number the chunks of this rank 1, 2, 3 ... without gaps");
}

TEST(Schedule, RefusesChunksWithDifferentNumbersOfMicrobatches) {
  expect_refusal<ScheduleError>("1,2,1,-2,-1,-1",
                                "chunk 1 has 2 microbatches, but chunk 2 has 1\n"
                                "  where: entry 3 of 6, forward of chunk 1, microbatch 2\n"
                                "  fix:   send every microbatch through every chunk");
  expect_refusal<ScheduleError>("1,2,2,-2,-2,-1",
                                "chunk 1 has 1 microbatch, but chunk 2 has 2\n"
                                "  where: entry 3 of 6, forward of chunk 2, microbatch 2\n"
                                "  fix:   send every microbatch through every chunk");
}

TEST(Schedule, RefusesLayersThatDoNotFit) {
  const auto message = [](const char* what) {
    return std::string(what) +
           "\n  where: layers_per_chunk\n  fix:   give one positive number for all chunks, or one for each";
  };
  expect_refusal<ScheduleError>("1,-1", message("layers_per_chunk has 2 numbers, but the schedule has 1 chunk"),
                                {.layers_per_chunk = {1, 1}});
  expect_refusal<ScheduleError>("1,2,-2,-1", message("layers_per_chunk has 3 numbers, but the schedule has 2 chunks"),
                                {.layers_per_chunk = {1, 1, 1}});
  expect_refusal<ScheduleError>("1,2,-2,-1", message("chunk 2 must have 1 layer or more, got 0"),
                                {.layers_per_chunk = {1, 0}});
  expect_refusal<ScheduleError>("1,2,-2,-1", message("chunk 1 must have 1 layer or more, got -3"),
                                {.layers_per_chunk = {-3}});
  expect_refusal<ScheduleError>("1,2,-2,-1", message("4294967294 layers are too many"),
                                {.layers_per_chunk = {std::numeric_limits<int>::max()}});
}

TEST(Schedule, RefusesToTellOfChunksThatItLacks) {
  const Schedule schedule = Schedule::parse("1,2,-2,-1");
  for (const int chunk : {0, 3, -1}) {
    const std::string message = "chunk must be 1 to 2, got " + std::to_string(chunk);
    EXPECT_THAT([&] { (void)schedule.layers(chunk); }, ThrowsMessage<UsageError>(message));
    EXPECT_THAT([&] { (void)schedule.first_layer(chunk); }, ThrowsMessage<UsageError>(message));
    EXPECT_THAT([&] { (void)schedule.depth(chunk); }, ThrowsMessage<UsageError>(message));
  }
  EXPECT_THAT([] { (void)Schedule().depth(1); },
              ThrowsMessage<UsageError>("chunk 1 was asked for, but the schedule is empty"));
}

}  // namespace
}  // namespace pianola::schedule_test

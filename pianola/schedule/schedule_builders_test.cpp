#include <pianola/core/error.hpp>
#include <pianola/schedule/schedule.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

namespace pianola::schedule_builders_test {
namespace {

using ::testing::ThrowsMessage;

PipelineShape shape(int pipeline_size, int virtual_size, int microbatches, int rank) {
  return {.pipeline_size = pipeline_size, .virtual_size = virtual_size, .microbatches = microbatches, .rank = rank};
}

TEST(Gpipe, RunsAllForwardsFirst) {
  for (const int rank : {0, 1, 2}) {
    EXPECT_EQ(Schedule::gpipe(shape(3, 1, 4, rank)).to_string(), "1,1,1,1,-1,-1,-1,-1");
  }
}

TEST(OneFOneB, WarmsUpByTheRanksThatFollow) {
  EXPECT_EQ(Schedule::one_f_one_b(shape(3, 1, 4, 0)).to_string(), "1,1,1,-1,1,-1,-1,-1");
  EXPECT_EQ(Schedule::one_f_one_b(shape(3, 1, 4, 1)).to_string(), "1,1,-1,1,-1,1,-1,-1");
  EXPECT_EQ(Schedule::one_f_one_b(shape(3, 1, 4, 2)).to_string(), "1,-1,1,-1,1,-1,1,-1");
}

TEST(OneFOneB, IsGpipeWhereTheMicrobatchesEndInTheWarmUp) {
  EXPECT_EQ(Schedule::one_f_one_b(shape(8, 1, 2, 0)).to_string(), "1,1,-1,-1");
  EXPECT_EQ(Schedule::one_f_one_b(shape(std::numeric_limits<int>::max(), 1, 1, 0)).to_string(), "1,-1");
}

// Expected: what Megatron-LM's get_schedule_table, get_pp_rank_microbatches and convert_schedule_table_to_order give.
struct Interleaving {
  const char* name;
  PipelineShape shape;
  const char* order;
};
class InterleavedTable : public ::testing::TestWithParam<Interleaving> {};
TEST_P(InterleavedTable, OrdersChunksAsMegatronDoes) {
  EXPECT_EQ(Schedule::interleaved(GetParam().shape).to_string(), GetParam().order);
}
INSTANTIATE_TEST_SUITE_P(
    Ranks, InterleavedTable,
    ::testing::Values(
        Interleaving{"FirstOfTwo", shape(2, 2, 4, 0), "1,1,2,2,1,-2,1,-2,2,-1,2,-1,-2,-2,-1,-1"},
        Interleaving{"LastOfTwo", shape(2, 2, 4, 1), "1,1,2,-2,2,-2,1,-1,1,-1,2,-2,2,-2,-1,-1"},
        Interleaving{"FirstOfTwoWithOneGroup", shape(2, 2, 2, 0), "1,1,2,2,-2,-2,-1,-1"},
        Interleaving{"LastOfTwoWithOneGroup", shape(2, 2, 2, 1), "1,1,2,-2,2,-2,-1,-1"},
        Interleaving{"FirstOfFourWithOneGroup", shape(4, 2, 4, 0), "1,1,1,1,2,2,2,2,-2,-2,-2,-2,-1,-1,-1,-1"},
        Interleaving{"SecondOfFourWithOneGroup", shape(4, 2, 4, 1), "1,1,1,1,2,2,2,2,-2,-2,-2,-2,-1,-1,-1,-1"},
        Interleaving{"ThirdOfFourWithOneGroup", shape(4, 2, 4, 2), "1,1,1,1,2,2,2,-2,2,-2,-2,-2,-1,-1,-1,-1"},
        Interleaving{"LastOfFourWithOneGroup", shape(4, 2, 4, 3), "1,1,1,1,2,-2,2,-2,2,-2,2,-2,-1,-1,-1,-1"},
        Interleaving{"LastOfTwoWithThreeChunks", shape(2, 3, 2, 1), "1,1,2,2,3,-3,3,-3,-2,-2,-1,-1"}),
    [](const auto& each) { return std::string(each.param.name); });

TEST(Interleaved, IsOneFOneBWithOneChunkPerRank) {
  for (const int rank : {0, 1, 2}) {
    EXPECT_EQ(Schedule::interleaved(shape(3, 1, 4, rank)), Schedule::one_f_one_b(shape(3, 1, 4, rank)));
  }
}

// Runs all ranks of a pipeline side by side: a step starts once the rank before it (for a backward: after it) has done
// the same microbatch. Returns whether all of them come to their end.
bool runs_to_its_end(const PipelineShape& pipeline) {
  const auto ranks = static_cast<std::size_t>(pipeline.pipeline_size);
  const int stages = pipeline.pipeline_size * pipeline.virtual_size;
  std::vector<Schedule> schedules;
  for (int rank = 0; rank < pipeline.pipeline_size; ++rank) {
    PipelineShape part = pipeline;
    part.rank = rank;
    schedules.push_back(Schedule::interleaved(part));
  }
  std::vector<int> forwards(static_cast<std::size_t>(stages), 0);  // done, by stage of the model
  std::vector<int> backwards = forwards;
  std::vector<std::size_t> next(ranks, 0);
  const auto try_step = [&](std::size_t rank) {
    if (next[rank] == schedules[rank].steps().size()) return false;
    const ScheduleStep step = schedules[rank].steps()[next[rank]];
    const std::size_t stage = static_cast<std::size_t>(step.chunk - 1) * ranks + rank;
    const bool last = stage + 1 == static_cast<std::size_t>(stages);
    const bool ready = step.direction == Direction::forward ? stage == 0 || forwards[stage - 1] >= step.microbatch
                                                            : last || backwards[stage + 1] >= step.microbatch;
    if (!ready) return false;
    ++(step.direction == Direction::forward ? forwards : backwards)[stage];
    ++next[rank];
    return true;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t rank = 0; rank < ranks; ++rank) moved = try_step(rank) || moved;
  }
  return std::all_of(backwards.begin(), backwards.end(), [&](int done) { return done == pipeline.microbatches; });
}

TEST(Interleaved, NeverLetsTheRanksWaitForEachOtherForever) {
  for (const int pipeline_size : {2, 3, 4, 8}) {
    for (const int virtual_size : {1, 2, 3, 4}) {
      for (const int groups : {1, 2, 3, 5}) {
        EXPECT_TRUE(runs_to_its_end(shape(pipeline_size, virtual_size, groups * pipeline_size, 0)))
            << pipeline_size << " ranks, " << virtual_size << " chunks, " << groups << " groups";
      }
    }
  }
}

TEST(Interleaved, RefusesMicrobatchesThatAreNoMultipleOfThePipelinesSize) {
  EXPECT_THAT([] { (void)Schedule::interleaved(shape(4, 2, 6, 0)); },
              ThrowsMessage<ConfigError>(
                  "the interleaved schedule needs microbatches to be a multiple of pipeline_size 4, got 6\n"
                  "  fix:   use 4 or 8 microbatches"));
  EXPECT_THAT([] { (void)Schedule::interleaved(shape(4, 2, 3, 0)); },
              ThrowsMessage<ConfigError>(
                  "the interleaved schedule needs microbatches to be a multiple of pipeline_size 4, got 3\n"
                  "  fix:   use 4 microbatches"));
}

TEST(Interleaved, RefusesSeveralChunksWithoutAPipeline) {
  EXPECT_THAT([] { (void)Schedule::interleaved(shape(1, 2, 4, 0)); },
              ThrowsMessage<ConfigError>("interleaving 2 chunks per rank needs a pipeline_size of 2 or more, got 1\n"
                                         "  fix:   use virtual_size 1 where there is no pipeline"));
}

using Builder = Schedule (*)(const PipelineShape&, const ScheduleOptions&);

TEST(ScheduleBuilders, RefuseSizesAndRanksOutOfRange) {
  for (const Builder build : {&Schedule::gpipe, &Schedule::one_f_one_b, &Schedule::interleaved}) {
    const auto expect_refusal = [&](const PipelineShape& wrong, const char* message) {
      EXPECT_THAT([&] { (void)build(wrong, {}); }, ThrowsMessage<ConfigError>(message));
    };
    expect_refusal(shape(0, 1, 1, 0), "pipeline_size must be 1 or more, got 0");
    expect_refusal(shape(2, -1, 2, 0), "virtual_size must be 1 or more, got -1");
    expect_refusal(shape(2, 1, 0, 0), "microbatches must be 1 or more, got 0");
    expect_refusal(shape(2, 1, 2, 2), "rank must be 0 to 1 in a pipeline of 2, got 2");
    expect_refusal(shape(2, 1, 2, -1), "rank must be 0 to 1 in a pipeline of 2, got -1");
    expect_refusal(shape(2, 2, 2'000'000'000, 0),
                   "microbatches times virtual_size must be 100000 or less, got 2000000000 times 2");
  }
}

TEST(ScheduleBuilders, RefuseSeveralChunksWhereTheScheduleHasOne) {
  EXPECT_THAT([] { (void)Schedule::gpipe(shape(2, 2, 2, 0)); },
              ThrowsMessage<ConfigError>("GPipe has one chunk per rank, got virtual_size 2\n"
                                         "  fix:   use the interleaved schedule for several chunks per rank"));
  EXPECT_THAT([] { (void)Schedule::one_f_one_b(shape(2, 3, 2, 0)); },
              ThrowsMessage<ConfigError>("1F1B has one chunk per rank, got virtual_size 3\n"
                                         "  fix:   use the interleaved schedule for several chunks per rank"));
}

TEST(ScheduleBuilders, TakeLayersPerChunk) {
  EXPECT_EQ(Schedule::interleaved(shape(2, 2, 2, 0), {.layers_per_chunk = {3, 2}}).total_layers(), 5);
  EXPECT_THAT(
      [] {
        (void)Schedule::gpipe(shape(1, 1, 1, 0), {.layers_per_chunk = {1, 1}});
      },
      ThrowsMessage<ScheduleError>(::testing::HasSubstr("layers_per_chunk has 2 numbers")));
}

}  // namespace
}  // namespace pianola::schedule_builders_test

#include <pianola/schedule/schedule_drawing.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <sstream>
#include <string>

namespace pianola::schedule_drawing_test {
namespace {

TEST(Timeline, HasARowPerChunkAndAColumnPerStep) {
  EXPECT_EQ(draw_timeline(Schedule::parse("1,2,1,2,-2,-1,-2,-1")),
            "step      1   2   3   4   5   6   7   8\n"
            "chunk 1  F1   .  F2   .   .  B1   .  B2\n"
            "chunk 2   .  F1   .  F2  B1   .  B2   .\n");
}

TEST(Timeline, GoesOnInBlocksOfEqualLengthWhereItIsTooWide) {
  EXPECT_EQ(draw_timeline(Schedule::parse("1,2,1,2,-2,-1,-2,-1"), 30),  // 5 steps would fit
            "step      1   2   3   4\n"
            "chunk 1  F1   .  F2   .\n"
            "chunk 2   .  F1   .  F2\n"
            "\n"
            "step      5   6   7   8\n"
            "chunk 1   .  B1   .  B2\n"
            "chunk 2  B1   .  B2   .\n");
}

TEST(Timeline, ShowsOneStepPerBlockHoweverNarrowItMustBe) {
  EXPECT_EQ(draw_timeline(Schedule::parse("1,-1"), 3),
            "step      1\n"
            "chunk 1  F1\n"
            "\n"
            "step      2\n"
            "chunk 1  B1\n");
}

TEST(Timeline, KeepsToItsWidth) {
  const Schedule schedule =
      Schedule::interleaved({.pipeline_size = 4, .virtual_size = 12, .microbatches = 40, .rank = 1});
  for (const std::size_t width : {40U, 80U, 100U, 1000U}) {
    std::istringstream lines(draw_timeline(schedule, width));
    std::size_t widest = 0;
    for (std::string line; std::getline(lines, line);) widest = std::max(widest, line.size());
    EXPECT_LE(widest, width);
    EXPECT_GT(widest, width * 3 / 4);
  }
}

TEST(Timeline, OfAnEmptyScheduleIsEmpty) { EXPECT_EQ(draw_timeline(Schedule()), ""); }

TEST(ScheduleDescription, ShowsFactsTimelineLifetimesAndBuffers) {
  EXPECT_EQ(describe(Schedule::parse("1,2,1,2,-2,-1,-2,-1", {.layers_per_chunk = {3, 2}})),
            "valid                  yes\n"
            "order                  1,2,1,2,-2,-1,-2,-1\n"
            "steps                  8\n"
            "chunks                 2\n"
            "microbatches           2\n"
            "layers                 5\n"
            "buffers                14\n"
            "buffers without reuse  16\n"
            "\n"
            "Timeline (F1, B1: forward and backward of microbatch 1)\n"
            "step      1   2   3   4   5   6   7   8\n"
            "chunk 1  F1   .  F2   .   .  B1   .  B2\n"
            "chunk 2   .  F1   .  F2  B1   .  B2   .\n"
            "\n"
            "Chunks (as many slots as microbatches in flight)\n"
            "chunk  layers  first layer  slots\n"
            "-----  ------  -----------  -----\n"
            "    1       3            0      2\n"
            "    2       2            3      2\n"
            "\n"
            "Steps in which the buffers are in use\n"
            "chunk  microbatch  slot  input, output  output gradient  input gradient\n"
            "-----  ----------  ----  -------------  ---------------  --------------\n"
            "    1           1     0  1 to 6         6                6 to 8\n"
            "    1           2     1  3 to 8         8                8\n"
            "    2           1     0  2 to 5         5                5 to 8\n"
            "    2           2     1  4 to 7         7                7 to 8\n"
            "\n"
            "Buffers\n"
            "buffer           needed  without reuse\n"
            "---------------  ------  -------------\n"
            "input                 4              4\n"
            "output                4              4\n"
            "output gradient       2              4\n"
            "input gradient        4              4\n");
}

TEST(ScheduleReport, HasEveryBufferInJson) {
  const auto json = nlohmann::json::parse(schedule_report(Schedule::parse("1,1,-1,1,-1,-1")).to_json());
  EXPECT_EQ(json["valid"], true);
  EXPECT_EQ(json["order"], "1,1,-1,1,-1,-1");
  EXPECT_EQ(json["steps"], 6);
  EXPECT_EQ(json["chunks"], 1);
  EXPECT_EQ(json["microbatches"], 3);
  EXPECT_EQ(json["layers"], 1);
  EXPECT_EQ(json["buffers"], 7);
  EXPECT_EQ(json["buffers_without_reuse"], 12);
  EXPECT_EQ(json["chunk_sizes"], nlohmann::json::parse(R"([{"chunk": 1, "layers": 1, "first_layer": 0, "slots": 2}])"));
  EXPECT_EQ(json["lifetimes"].size(), 12U);
  EXPECT_EQ(json["lifetimes"][7], nlohmann::json::parse(R"({"chunk": 1, "microbatch": 2, "kind": "input gradient",
                                                            "buffer": 1, "first_step": 5, "last_step": 6})"));
  EXPECT_EQ(json["buffer_kinds"][2],
            nlohmann::json::parse(R"({"kind": "output gradient", "buffers": 1, "buffers_without_reuse": 3})"));
}

TEST(ScheduleReport, OfAnEmptyScheduleHasNoRows) {
  const auto json = nlohmann::json::parse(schedule_report(Schedule()).to_json());
  EXPECT_EQ(json["valid"], false);
  EXPECT_EQ(json["steps"], 0);
  EXPECT_TRUE(json["lifetimes"].empty());
}

}  // namespace
}  // namespace pianola::schedule_drawing_test

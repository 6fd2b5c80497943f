#include <pianola/memory/step_run.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace pianola::memory::step_run_test {
namespace {

using ::testing::ElementsAre;

TEST(StepRunTest, TheStreamThatAskedForTheMostIsTheMainOne) {
  const StepRun run{.blocks = {{.made = 0, .bytes = 512}, {.made = 1, .bytes = 4096}, {.made = 2, .bytes = 1024}},
                    .made_in = {-1, 0, 1},
                    .streams = {7, 9, 7},
                    .operations = {&run, &run}};
  const auto [main, others] = by_main_stream(run);
  EXPECT_THAT(main.streams, ElementsAre(9U));
  EXPECT_THAT(main.made_in, ElementsAre(0));
  EXPECT_THAT(others.streams, ElementsAre(7U, 7U));
  EXPECT_THAT(others.made_in, ElementsAre(-1, 1));
  EXPECT_EQ(main.operations.size(), 2U);
}

TEST(StepRunTest, AStreamOfAnotherThreadIsNotTheMainOneThoughItAskedForMore) {
  StepRun run{.blocks = {{.made = 0, .bytes = 512}, {.made = 1, .bytes = 4096}, {.made = 2, .bytes = 1024}},
              .made_in = {-1, 0, 1},
              .streams = {7, 9, 8},
              .operations = {},
              .main = 7};
  EXPECT_THAT(by_main_stream(run).first.streams, ElementsAre(7U));
  EXPECT_THAT(by_main_stream(run).second.streams, ElementsAre(9U, 8U));
  EXPECT_THAT(by_main_stream(run, /*captured=*/8).first.streams, ElementsAre(8U));
  EXPECT_THAT(by_main_stream(run, /*captured=*/3).first.streams, ElementsAre(7U));
  run.main.reset();
  EXPECT_THAT(by_main_stream(run, /*captured=*/3).first.streams, ElementsAre(9U));
}

TEST(StepRunTest, ARunWithoutBlocksHasNone) {
  const auto [main, others] = by_main_stream({});
  EXPECT_TRUE(main.blocks.empty() && others.blocks.empty());
}

}  // namespace
}  // namespace pianola::memory::step_run_test

#include <pianola/profile/analyse/analysis.hpp>

#include <pianola/profile/analyse/range_iterations.hpp>
#include <pianola/profile/testing/timeline_builder.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace pianola::profiling::regions_test {
namespace {

using ::testing::SizeIs;

using Kind = HostRange::Kind;

// Four steps of 100 us. Thread 1 issues a and b within "layer", thread 2 c in a node of autograd:
//   a runs from 10 to 20, b from 30 to 50, c from 60 to 65; so 10 us are idle before b, 10 before c, 45 before a.
Timeline steps() {
  TimelineBuilder t;
  for (int i = 0; i < 4; ++i) {
    const double at = 100 * i;
    t.annotation("step#" + std::to_string(i), at, 99);
    t.module("nn.Module: Layer_0", at + 1, 30);
    t.operation("aten::linear", at + 2, 10).operation("aten::addmm", at + 3, 8).operation("aten::view", at + 14, 2);
    t.kernel("a", at + 10, 10).launched(at + 4).kernel("b", at + 30, 20).launched(at + 24);
    t.on_thread(2).backward("AddmmBackward0", at + 50, 20).kernel("c", at + 60, 5).launched(at + 54).on_thread(1);
  }
  return t.build();
}

const Region* find(const std::vector<Region>& regions, const std::string& name) {
  for (const Region& region : regions) {
    if (region.name == name) return &region;
  }
  return nullptr;
}

TEST(RegionsTest, AddUpWhatWasIssuedInsideAndTheGapsBeforeIt) {
  const Analysis analysis = analyse(steps(), {.range = "step"});
  ASSERT_THAT(analysis.iterations, SizeIs(3));  // from 10 to 310; each a: 45 us idle but the first one's

  const Region* layer = find(analysis.regions, "nn.Module: Layer_0");
  ASSERT_NE(layer, nullptr);
  EXPECT_EQ(layer->kind, Kind::module);
  EXPECT_EQ(layer->entries, 1U);
  EXPECT_DOUBLE_EQ(layer->kernels, 2);
  EXPECT_EQ(layer->busy, us(30));
  EXPECT_EQ(layer->idle, us((3 * 10 + 2 * 45) / 3.0));

  const Region* addmm = find(analysis.regions, "aten::addmm");
  ASSERT_NE(addmm, nullptr);
  EXPECT_DOUBLE_EQ(addmm->kernels, 1);
  EXPECT_EQ(addmm->busy, us(10));
  EXPECT_EQ(addmm->idle, us(30));

  const Region* node = find(analysis.regions, "AddmmBackward0");
  ASSERT_NE(node, nullptr);
  EXPECT_EQ(node->kind, Kind::backward);
  EXPECT_EQ(node->busy, us(5));
  EXPECT_EQ(node->idle, us(10));
}

TEST(RegionsTest, AreOneForAllCountersAndOfOneThread) {
  const Analysis analysis = analyse(steps(), {.range = "step"});
  const Region* step = find(analysis.regions, "step");
  ASSERT_NE(step, nullptr);
  EXPECT_EQ(step->entries, 1U);
  EXPECT_DOUBLE_EQ(step->kernels, 2);  // c was issued by another thread
}

TEST(RegionsTest, StandInTheOrderOfTheirIdleTimeAndWithoutThoseThatIssuedNothing) {
  const Analysis analysis = analyse(steps(), {.range = "step"});
  std::vector<std::string> names;
  for (const Region& region : analysis.regions) names.push_back(region.name);
  // Idle 40, 40, 30, 30, 10; of equal ones by busy time, then by name.
  EXPECT_THAT(names,
              ::testing::ElementsAre("nn.Module: Layer_0", "step", "aten::addmm", "aten::linear", "AddmmBackward0"));
}

TEST(RegionsTest, InsideTheirOwnNameCountOnce) {
  TimelineBuilder t;
  for (int i = 0; i < 4; ++i) {
    t.annotation("step", 100 * i, 90).operation("aten::to", 100 * i + 1, 20).operation("aten::to", 100 * i + 2, 10);
    t.kernel("a", 100 * i + 10, 10).launched(100 * i + 4);
  }
  const Analysis analysis = analyse(t.build(), {.range = "step"});
  const Region* to = find(analysis.regions, "aten::to");
  ASSERT_NE(to, nullptr);
  EXPECT_EQ(to->entries, 1U);
  EXPECT_DOUBLE_EQ(to->kernels, 1);
}

TEST(RegionsTest, LeaveOutWorkOfNoIteration) {
  TimelineBuilder t;
  t.annotation("warm-up", 0, 50).kernel("a", 10, 10).launched(1);
  for (int i = 1; i < 5; ++i) {
    t.annotation("step", 100 * i, 90).kernel("a", 100 * i + 10, 10).launched(100 * i + 4);
  }
  EXPECT_EQ(find(analyse(t.build(), {.range = "step"}).regions, "warm-up"), nullptr);
}

TEST(RegionsTest, OfACpuHoldTheOperationsOfTheirThread) {
  TimelineBuilder t;
  for (int i = 0; i < 4; ++i) {
    t.annotation("step", 100 * i, 90).operation("aten::mm", 100 * i + 10, 10);
    t.cpu_work("aten::mm", 100 * i + 10, 10).cpu_work("aten::add", 100 * i + 25, 10);
  }
  const Analysis analysis = analyse(t.build(), {.range = "step"});
  const Region* step = find(analysis.regions, "step");
  ASSERT_NE(step, nullptr);
  EXPECT_DOUBLE_EQ(step->kernels, 2);
  EXPECT_EQ(step->busy, us(20));
  EXPECT_EQ(find(analysis.regions, "aten::mm")->busy, us(10));
}

TEST(RegionsTest, AreAtMostTwoHundred) {
  TimelineBuilder t;
  for (int i = 0; i < 250; ++i) {
    t.operation("aten::op" + std::to_string(i), 10 * i, 5)
        .kernel("k" + std::to_string(i), 10 * i + 4, 2)
        .launched(10 * i);
  }
  EXPECT_THAT(analyse(t.build()).regions, SizeIs(200));
}

TEST(RangeName, LosesOnlyACounterAtItsEnd) {
  EXPECT_EQ(without_counter("ProfilerStep#12"), "ProfilerStep");
  EXPECT_EQ(without_counter("Optimizer.step#AdamW.step"), "Optimizer.step#AdamW.step");
  EXPECT_EQ(without_counter("layer#1#23"), "layer#1");
  EXPECT_EQ(without_counter("layer#"), "layer#");
  EXPECT_EQ(without_counter("#5"), "#5");
  EXPECT_EQ(without_counter("layer 5"), "layer 5");
}

}  // namespace
}  // namespace pianola::profiling::regions_test

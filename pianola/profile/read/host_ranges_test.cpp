#include <pianola/profile/read/host_ranges.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace pianola::profiling::host_ranges_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Kind = HostRange::Kind;

HostRange range(Nanoseconds begin, Nanoseconds end, std::int64_t thread = 1) {
  return {.time = {begin, end}, .thread = thread};
}

std::vector<TimeSpan> times(const std::vector<HostRange>& ranges) {
  std::vector<TimeSpan> times;
  for (const HostRange& one : ranges) times.push_back(one.time);
  return times;
}

TEST(NestTest, LeavesRangesThatLieInsideEachOtherOrApart) {
  std::vector<HostRange> ranges = {range(0, 10), range(0, 4), range(4, 10), range(5, 5), range(10, 20)};
  EXPECT_EQ(nest(ranges), 0u);
  EXPECT_THAT(times(ranges),
              ElementsAre(TimeSpan{0, 10}, TimeSpan{0, 4}, TimeSpan{4, 10}, TimeSpan{5, 5}, TimeSpan{10, 20}));
}

TEST(NestTest, CutsARangeAtTheEndOfTheOneInWhichItBegins) {
  std::vector<HostRange> ranges = {range(0, 10), range(2, 6), range(5, 12), range(11, 13)};
  EXPECT_EQ(nest(ranges), 1u);
  EXPECT_THAT(times(ranges), ElementsAre(TimeSpan{0, 10}, TimeSpan{2, 6}, TimeSpan{5, 6}, TimeSpan{11, 13}))
      << "the third begins in the second, and so ends with it";
}

TEST(NestTest, KeepsThreadsAndProcessesApart) {
  std::vector<HostRange> ranges = {range(0, 10, 1), range(5, 15, 2), range(6, 20, 1)};
  ranges.back().process = 1;
  EXPECT_EQ(nest(ranges), 0u);
}

struct Program {
  Timeline timeline;

  void add(const char* name, Nanoseconds begin, Nanoseconds end, Kind kind = Kind::operation, std::int64_t thread = 1) {
    timeline.ranges.push_back({.time = {begin, end}, .name = timeline.intern(name), .kind = kind, .thread = thread});
  }
  std::vector<std::string> outermost() const {
    std::vector<std::string> names;
    for (const DeviceWork& work : outermost_operations(timeline)) names.push_back(timeline.name(work.name));
    return names;
  }
};

TEST(OutermostOperationsTest, AreThoseInNoOtherOperation) {
  Program program;
  program.add("step", 0, 100, Kind::annotation);
  program.add("aten::linear", 10, 30);
  program.add("aten::addmm", 12, 28);
  program.add("vision::nms", 30, 40);
  EXPECT_THAT(program.outermost(), ElementsAre("aten::linear", "vision::nms"));
}

TEST(OutermostOperationsTest, LookThroughNodesOfAutograd) {
  Program program;
  program.add("autograd::engine::evaluate_function: AddmmBackward0", 0, 50, Kind::backward);
  program.add("AddmmBackward0", 1, 49);
  program.add("aten::t", 2, 5);
  program.add("aten::mm", 6, 20);
  program.add("torch::autograd::AccumulateGrad", 60, 70);
  program.add("aten::detach", 62, 65);
  EXPECT_THAT(program.outermost(), ElementsAre("aten::t", "aten::mm", "aten::detach"));
}

TEST(OutermostOperationsTest, AreWorkOfTheCpuOnTheirThread) {
  Program program;
  program.add("aten::add", 10, 30, Kind::operation, 77);
  program.add("aten::mul", 20, 25, Kind::operation, 78);
  const std::vector<DeviceWork> work = outermost_operations(program.timeline);
  ASSERT_EQ(work.size(), 2u);
  EXPECT_EQ(work[0].time, (TimeSpan{10, 30}));
  EXPECT_EQ(work[0].kind, DeviceWork::Kind::operation);
  EXPECT_EQ(work[0].device, -1);
  EXPECT_EQ(work[0].stream, 77);
  EXPECT_EQ(work[1].stream, 78) << "an operation of another thread is in no other, though it runs meanwhile";
}

TEST(OutermostOperationsTest, AreNoneWithoutOperations) {
  Program program;
  program.add("step", 0, 100, Kind::annotation);
  EXPECT_THAT(program.outermost(), IsEmpty());
}

}  // namespace
}  // namespace pianola::profiling::host_ranges_test

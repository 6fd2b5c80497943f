#include <pianola/profile/analyse/device_work.hpp>

#include <pianola/core/error.hpp>
#include <pianola/profile/testing/timeline_builder.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace pianola::profiling::device_work_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Process 0 has 3 kernels on device 0 and 1 on device 1; process 1 has 2 on device 1; the CPU of process 0 has 4.
Timeline two_processes() {
  TimelineBuilder t;
  t.kernel("a", 0, 1).kernel("b", 2, 1).kernel("c", 4, 1);
  t.on_device(1).kernel("d", 1, 1);
  t.in_process(1).kernel("e", 3, 1).kernel("f", 5, 1);
  t.in_process(0).cpu_work("aten::add", 0, 1).cpu_work("aten::add", 1, 1);
  t.cpu_work("aten::add", 2, 1).cpu_work("aten::add", 3, 1);
  return t.build();
}

std::vector<std::string> names_of(const DeviceWorkList& list) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < list.size(); ++i) names.push_back(list.timeline->name(list[i].name));
  return names;
}

TEST(ChooseDevice, TakesTheOneWithMostWorkAndAGpuBeforeTheCpu) {
  const Timeline timeline = two_processes();
  const DeviceWorkList list = choose_device(timeline, -1, -2);
  EXPECT_EQ(list.process, 0);
  EXPECT_EQ(list.device, 0);
  EXPECT_THAT(names_of(list), ElementsAre("a", "b", "c"));
}

TEST(ChooseDevice, FollowsTheCaller) {
  const Timeline timeline = two_processes();
  EXPECT_THAT(names_of(choose_device(timeline, 1, -2)), ElementsAre("e", "f"));
  EXPECT_THAT(names_of(choose_device(timeline, -1, 1)), ElementsAre("e", "f"));  // 2 there, 1 of process 0
  EXPECT_THAT(names_of(choose_device(timeline, 0, 1)), ElementsAre("d"));
  EXPECT_EQ(choose_device(timeline, -1, -1).size(), 4U);
  EXPECT_TRUE(choose_device(timeline, -1, -1).on_cpu());
}

TEST(ChooseDevice, TakesTheCpuWhereNoGpuWorked) {
  const Timeline timeline = TimelineBuilder().cpu_work("aten::add", 0, 1).build();
  EXPECT_EQ(choose_device(timeline, -1, -2).device, -1);
}

TEST(ChooseDevice, RefusesATimelineWithoutWork) {
  Timeline timeline = TimelineBuilder().synchronize(0, 1).annotation("step", 0, 1).annotation("step", 2, 1).build();
  timeline.source = "trace.json";
  EXPECT_THAT(
      [&] { (void)choose_device(timeline, -1, -2); },
      ThrowsMessage<UsageError>(AllOf(HasSubstr("no device work: 1 calls and 2 ranges of the host"),
                                      HasSubstr("where: timeline of trace.json"), HasSubstr("ProfilerActivity.CUDA"))));
}

TEST(ChooseDevice, RefusesAProcessThatIsNotThere) {
  const Timeline timeline = two_processes();
  EXPECT_THAT([&] { (void)choose_device(timeline, 7, -2); },
              ThrowsMessage<UsageError>(
                  AllOf(HasSubstr("no process 7 gave a device work"), HasSubstr("take one of 0, 1, or -1"))));
}

TEST(ChooseDevice, RefusesADeviceThatDidNothing) {
  const Timeline timeline = two_processes();
  EXPECT_THAT([&] { (void)choose_device(timeline, -1, 5); },
              ThrowsMessage<UsageError>(
                  AllOf(HasSubstr("device 5 did no work\n"), HasSubstr("take one of 0, 1, the CPU (-1), or -2"))));
  EXPECT_THAT([&] { (void)choose_device(timeline, 1, 0); },
              ThrowsMessage<UsageError>(
                  AllOf(HasSubstr("device 0 did no work of process 1"), HasSubstr("take one of 1, or -2"))));
}

TEST(CopyDirection, IsToldByTheNamesOfBothProfilers) {
  Timeline timeline;
  const auto direction = [&](const char* name, DeviceWork::Kind kind = DeviceWork::Kind::copy) {
    DeviceWork work;
    work.kind = kind;
    work.name = timeline.intern(name);
    return copy_direction(timeline, work);
  };
  EXPECT_EQ(direction("Memcpy HtoD (Pageable -> Device)"), CopyDirection::to_device);
  EXPECT_EQ(direction("[CUDA memcpy Host-to-Device]"), CopyDirection::to_device);
  EXPECT_EQ(direction("Memcpy DtoH (Device -> Pinned)"), CopyDirection::to_host);
  EXPECT_EQ(direction("[CUDA memcpy Device-to-Host]"), CopyDirection::to_host);
  EXPECT_EQ(direction("Memcpy DtoD (Device -> Device)"), CopyDirection::other);
  EXPECT_EQ(direction("my_HtoD_kernel", DeviceWork::Kind::kernel), CopyDirection::other);
}

TEST(United, JoinsWhatOverlapsOrTouches) {
  EXPECT_THAT(united({{5, 9}, {0, 3}, {3, 4}, {6, 7}, {8, 12}, {20, 20}}),
              ElementsAre(TimeSpan{0, 4}, TimeSpan{5, 12}));
}

TEST(Covered, CountsOnlyWhatLiesWithin) {
  const std::vector<TimeSpan> spans = {{0, 4}, {5, 12}, {20, 30}};
  EXPECT_EQ(covered(spans, {2, 22}), 2 + 7 + 2);
  EXPECT_EQ(covered(spans, {12, 20}), 0);
}

}  // namespace
}  // namespace pianola::profiling::device_work_test

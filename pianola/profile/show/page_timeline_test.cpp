#include <pianola/profile/show/page_json.hpp>
#include <pianola/profile/testing/small_profile.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace pianola::profiling::page_timeline_test {
namespace {

using ::testing::ElementsAre;

Json timeline_of(const SmallProfile& profile, std::size_t bytes = 1'000'000) {
  return timeline_json(profile.timeline, profile.analysis, bytes);
}

Json rows_of(const SmallProfile& profile) { return timeline_of(profile)["drawing"]["rows"]; }

std::vector<std::string> labels_of(const Json& rows, const std::string& kind) {
  std::vector<std::string> labels;
  for (const Json& row : rows) {
    if (row["kind"] == kind) labels.push_back(row["label"]);
  }
  return labels;
}

// The kernel lasts from 100 to 600 us of the third iteration, the one nearest to the median.
TEST(PageTimelineTest, DrawsTheTypicalIteration) {
  const Json timeline = timeline_of(SmallProfile());
  EXPECT_EQ(timeline["note"], "Iteration 3 of 3, the one nearest to the median duration (1.10 ms).");
  EXPECT_EQ(timeline["drawing"], Json::parse(R"({"duration": 1100000,
      "names": ["step", "cudaLaunchKernel", "idle: launch", "gemm<float, 4>"],
      "rows": [{"kind": "ranges", "label": "ranges", "marks": [[0, 1100000, "r", 0]]},
               {"kind": "calls", "label": "host calls", "marks": [[50000, 10000, "l", 1]]},
               {"kind": "gaps", "label": "idle", "marks": [[0, 100000, "l", 2]]},
               {"kind": "work", "label": "stream 7", "marks": [[100000, 500000, "k", 3]]}]})"));
  EXPECT_EQ(timeline["legend"], Json::parse(R"([["Host calls", [["l", "launch"]]],
      ["Idle because of", [["l", "launch"]]], ["Device", [["k", "kernel"]]]])"));
  EXPECT_EQ(timeline["rows"]["rows"][3]["cells"],
            Json::parse(R"(["stream 7", "kernels, copies and memsets", "1", "500 us", "1"])"));
}

TEST(PageTimelineTest, NamesTheCallBehindAGap) {
  SmallProfile profile;
  profile.add_call({2'200'000, 2'290'000}, "cudaStreamSynchronize", HostCall::Kind::synchronize);
  profile.analysis.gaps[2].cause = GapCause::synchronization;
  profile.analysis.gaps[2].culprit = profile.timeline.calls.size() - 1;
  const Json timeline = timeline_of(profile);
  EXPECT_THAT(timeline["drawing"]["names"], ::testing::Contains("idle: synchronization, cudaStreamSynchronize"));
  EXPECT_EQ(timeline["gaps"]["rows"], Json::parse(R"([{"cells":
      [{"mark": "s", "text": "synchronization", "code": "cudaStreamSynchronize"}, "100 us", "0 us", {"code": "gemm<float, 4>"}],
      "shows": [0, 100000]}])"));
}

TEST(PageTimelineTest, CutsWhatReachesBeyondTheIteration) {
  SmallProfile profile;
  profile.add_work({2'100'000, 2'210'000}, "before", 8, DeviceWork::Kind::copy);
  profile.timeline.work.back().bytes = 2U << 20U;
  profile.add_work({3'250'000, 3'400'000}, "after", 8, DeviceWork::Kind::memset);
  profile.add_work({3'300'000, 3'400'000}, "next", 8);
  const Json drawing = timeline_of(profile)["drawing"];
  EXPECT_EQ(drawing["rows"][4]["marks"], Json::parse(R"([[0, 10000, "c", 4], [1050000, 50000, "m", 5]])"));
  EXPECT_EQ(drawing["names"][4], "before, 2.0 MiB");
}

TEST(PageTimelineTest, LeavesOutOtherDevicesProcessesAndCallsThatNeitherLaunchNorWait) {
  SmallProfile profile;
  const std::size_t rows = rows_of(profile).size();
  profile.add_work({2'300'000, 2'400'000}, "elsewhere", 30);
  profile.timeline.work.back().device = 1;
  profile.add_work({2'300'000, 2'400'000}, "in another process", 31);
  profile.timeline.work.back().process = 1;
  profile.add_call({2'300'000, 2'400'000}, "cudaMalloc", HostCall::Kind::other, 9);
  profile.add_range({2'300'000, 2'400'000}, "aten::mm", HostRange::Kind::operation, 9);
  EXPECT_EQ(rows_of(profile).size(), rows);
}

TEST(PageTimelineTest, PutsNestedRangesUnderEachOtherAndApartOnesSideBySide) {
  SmallProfile profile;
  profile.add_range({2'300'000, 2'700'000}, "forward");
  profile.add_range({2'400'000, 2'500'000}, "nn.Module: Linear_0", HostRange::Kind::module);
  profile.add_range({2'500'000, 2'600'000}, "nn.Module: Linear_1", HostRange::Kind::module);
  profile.add_range({2'700'000, 2'900'000}, "backward");
  const Json rows = rows_of(profile);
  ASSERT_THAT(labels_of(rows, "ranges"), ElementsAre("ranges", "ranges", "ranges"));
  EXPECT_EQ(rows[0]["marks"].size(), 1U);
  EXPECT_EQ(rows[1]["marks"].size(), 2U);
  EXPECT_EQ(rows[2]["marks"].size(), 2U);
}

TEST(PageTimelineTest, LeavesOutTheStreamsWithLeastWorkWhereThereAreMany) {
  SmallProfile profile;
  for (std::int64_t stream = 20; stream < 40; ++stream) {
    profile.add_work({2'300'000, 2'300'000 + stream * 1000}, "kernel", stream);
  }
  const std::vector<std::string> streams = labels_of(rows_of(profile), "work");
  EXPECT_EQ(streams.size(), 12U);
  EXPECT_EQ(streams[0] + ", " + streams[1], "stream 7, stream 29");
  EXPECT_THAT(timeline_of(profile)["note"].get<std::string>(), ::testing::EndsWith("9 of the streams and threads."));
}

TEST(PageTimelineTest, ShowsTheWholeTimelineWhereThereAreNoIterations) {
  SmallProfile profile;
  profile.analysis.iterations.clear();
  profile.analysis.device = -1;
  for (DeviceWork& work : profile.timeline.work) {
    work.device = -1;
    work.kind = DeviceWork::Kind::operation;
  }
  const Json timeline = timeline_of(profile);
  EXPECT_EQ(timeline["note"], "All of 3.30 ms.");
  EXPECT_THAT(labels_of(timeline["drawing"]["rows"], "work"), ElementsAre("thread 7"));
  EXPECT_EQ(timeline["legend"][2], Json::parse(R"(["Device", [["k", "operation"]]])"));
  EXPECT_TRUE(timeline_json(Timeline{}, Analysis{}, 1000).is_null());
}

// 50,000 kernels of 3 us, each seventh of 15, one of 400 us: what is long stays, of the others several are one mark.
TEST(PageTimelineTest, MergesShortMarksAndLosesNothing) {
  SmallProfile profile;
  profile.timeline.work.clear();
  profile.analysis.iterations.clear();
  for (Nanoseconds i = 0; i < 50'000; ++i)
    profile.add_work({20'000 * i, 20'000 * i + (i % 7 == 0 ? 15'000 : 3'000)}, "short");
  profile.add_work({1'000'000'000, 1'000'400'000}, "long");
  const Json marks = rows_of(profile).back()["marks"];
  EXPECT_LE(marks.size(), 3000U);
  EXPECT_GE(marks.size(), 1500U) << "no coarser than need be";
  EXPECT_EQ(marks.back().size(), 4U);
  EXPECT_EQ(marks.back()[1], 400'000);
  Nanoseconds count = 0, covered = 0, end = 0;
  for (const Json& mark : marks) {
    EXPECT_GE(mark[0].get<Nanoseconds>(), end) << "marks overlap";
    end = mark[0].get<Nanoseconds>() + mark[1].get<Nanoseconds>();
    count += mark.size() == 4 ? 1 : mark[4].get<Nanoseconds>();
    covered += mark.size() == 4 ? mark[1].get<Nanoseconds>() : mark[5].get<Nanoseconds>();
    EXPECT_TRUE(mark.size() == 4 || mark[6].get<Nanoseconds>() <= 15'000);
  }
  EXPECT_EQ(count, 50'001);
  EXPECT_EQ(covered, 7143 * 15'000 + 42'857 * 3'000 + 400'000);
  EXPECT_LT(embedded(timeline_of(profile, 20'000)["drawing"]).size(), 20'000U) << "coarser, where there is less room";
}

TEST(PageTimelineTest, AMergedMarkIsCalledAfterTheLongest) {
  SmallProfile profile;
  profile.timeline.work.clear();
  profile.add_work({2'200'000, 2'200'010}, "first");
  profile.add_work({2'200'012, 2'200'032}, "second", 7, DeviceWork::Kind::copy);
  profile.add_work({2'200'040, 2'200'045}, "third");
  const Json drawing = timeline_of(profile, 10)["drawing"];
  const Json mark = drawing["rows"].back()["marks"][0];
  EXPECT_EQ(drawing["names"][mark[3].get<std::size_t>()], "second");
  EXPECT_EQ((Json{mark[0], mark[1], mark[2], mark[4], mark[5], mark[6]}), Json::parse(R"([0, 45, "c", 3, 35, 20])"));
}

}  // namespace
}  // namespace pianola::profiling::page_timeline_test

#include <pianola/profile/record/activity_decoder.hpp>

#include <pianola/profile/read/recording.hpp>
#include <pianola/profile/testing/fake_activity.hpp>
#include <pianola/profile/testing/temporary_folder.hpp>

#include <cupti_driver_cbid.h>
#include <cupti_runtime_cbid.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

namespace pianola::profiling::activity_decoder_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr CUpti_ActivityFlag kStart = CUPTI_ACTIVITY_FLAG_MARKER_START;
constexpr CUpti_ActivityFlag kEnd = CUPTI_ACTIVITY_FLAG_MARKER_END;

class ActivityDecoderTest : public ::testing::Test {
 protected:
  template <class Record>
  void decode(const Record& record) {
    decoder.decode(reinterpret_cast<const CUpti_Activity&>(record));
  }
  Timeline finish() {
    decoder.finish();
    writer->finish();
    return read_recording(path);
  }

  TemporaryFolder folder;
  const std::string path = folder / "1.pianola";
  std::unique_ptr<RecordingWriter> writer = RecordingWriter::open(path, {}, 1'000'000).writer;
  RecordedCalls calls{FakeActivity::names()};
  ActivityDecoder decoder{*writer, calls};
};

TEST_F(ActivityDecoderTest, WhatCanBeReadAgainIsAllThatIsWritten) {
  decode(kernel_record("gemm", 1000, 3500, 11));
  decode(kernel_record("ends before it begins", 9000, 8000, 12));
  const Timeline timeline = finish();
  EXPECT_EQ(timeline.work.size(), 1U);
  EXPECT_THAT(timeline.notes, ElementsAre(HasSubstr("1 kernels, copies and memsets have no times")));
}

TEST_F(ActivityDecoderTest, AKernelIsWorkOfItsDeviceAndStream) {
  decode(kernel_record("gemm", 1000, 3500, 11));
  decode(kernel_record("gemm", 5000, 5200, 12, 3));
  const Timeline timeline = finish();
  ASSERT_EQ(timeline.work.size(), 2U);
  const DeviceWork& kernel = timeline.work[0];
  EXPECT_EQ(kernel.kind, DeviceWork::Kind::kernel);
  EXPECT_EQ(kernel.time, (TimeSpan{0, 2500}));
  EXPECT_EQ(timeline.name(kernel.name), "gemm");
  EXPECT_EQ(kernel.device, 1);
  EXPECT_EQ(kernel.stream, 7);
  EXPECT_EQ(kernel.correlation, 11U);
  EXPECT_EQ(kernel.graph, 0U);
  EXPECT_EQ(timeline.work[1].graph, 3U) << "launched as a node of a graph";
  EXPECT_EQ(timeline.work[1].time, (TimeSpan{4000, 4200}));
  EXPECT_THAT(timeline.notes, IsEmpty());
}

TEST_F(ActivityDecoderTest, CopiesAndMemsetsHaveTheNamesOfTorchProfiler) {
  CUpti_ActivityMemcpy6 copy{};
  copy.kind = CUPTI_ACTIVITY_KIND_MEMCPY;
  copy.copyKind = CUPTI_ACTIVITY_MEMCPY_KIND_HTOD;
  copy.srcKind = CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE;
  copy.dstKind = CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
  copy.bytes = 4096;
  copy.start = 100;
  copy.end = 200;
  copy.deviceId = 2;
  copy.streamId = 14;
  copy.correlationId = 8;
  copy.graphId = 5;
  decode(copy);
  CUpti_ActivityMemcpyPtoP4 peer{};
  peer.kind = CUPTI_ACTIVITY_KIND_MEMCPY2;
  peer.copyKind = CUPTI_ACTIVITY_MEMCPY_KIND_PTOP;
  peer.srcKind = peer.dstKind = CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
  peer.bytes = 64;
  peer.start = 300;
  peer.end = 310;
  peer.correlationId = 9;
  decode(peer);
  CUpti_ActivityMemset4 memset{};
  memset.kind = CUPTI_ACTIVITY_KIND_MEMSET;
  memset.memoryKind = CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
  memset.bytes = 32;
  memset.start = 400;
  memset.end = 401;
  memset.correlationId = 10;
  decode(memset);
  const Timeline timeline = finish();
  ASSERT_EQ(timeline.work.size(), 3U);
  EXPECT_EQ(timeline.name(timeline.work[0].name), "Memcpy HtoD (Pageable -> Device)");
  EXPECT_EQ(timeline.work[0].kind, DeviceWork::Kind::copy);
  EXPECT_EQ(timeline.work[0].bytes, 4096U);
  EXPECT_EQ(timeline.work[0].device, 2);
  EXPECT_EQ(timeline.work[0].stream, 14);
  EXPECT_EQ(timeline.work[0].correlation, 8U);
  EXPECT_EQ(timeline.work[0].graph, 5U);
  EXPECT_EQ(timeline.name(timeline.work[1].name), "Memcpy PtoP (Device -> Device)");
  EXPECT_EQ(timeline.work[1].bytes, 64U);
  EXPECT_EQ(timeline.work[1].correlation, 9U);
  EXPECT_EQ(timeline.name(timeline.work[2].name), "Memset (Device)");
  EXPECT_EQ(timeline.work[2].kind, DeviceWork::Kind::memset);
  EXPECT_EQ(timeline.work[2].time, (TimeSpan{300, 301}));
}

TEST_F(ActivityDecoderTest, CallsHaveTheirKindThreadAndCorrelation) {
  decode(call_record(false, CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000, 100, 104, 11, 42));
  decode(call_record(true, CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch, 200, 209, 12, 43));
  decode(call_record(false, CUPTI_RUNTIME_TRACE_CBID_cudaGetDevice_v3020, 300, 301, 13));
  const Timeline timeline = finish();
  ASSERT_EQ(timeline.calls.size(), 2U) << "one that is not of interest is passed over";
  EXPECT_EQ(timeline.name(timeline.calls[0].name), "cudaLaunchKernel");
  EXPECT_EQ(timeline.calls[0].kind, HostCall::Kind::launch);
  EXPECT_EQ(timeline.calls[0].thread, 42);
  EXPECT_EQ(timeline.calls[0].correlation, 11U);
  EXPECT_EQ(timeline.calls[0].time, (TimeSpan{0, 4}));
  EXPECT_EQ(timeline.name(timeline.calls[1].name), "cuGraphLaunch");
  EXPECT_EQ(timeline.calls[1].kind, HostCall::Kind::graph_launch);
  EXPECT_EQ(timeline.calls[1].thread, 43);
}

TEST_F(ActivityDecoderTest, WorkWithoutTimesIsCounted) {
  decode(kernel_record("early", 1000, 2000, 1));
  decode(kernel_record("lost", 0, 0, 2));
  decode(kernel_record("running", 3000, 0, 3));
  const Timeline timeline = finish();
  EXPECT_EQ(timeline.work.size(), 1U);
  EXPECT_THAT(timeline.notes, ElementsAre(HasSubstr("2 kernels, copies and memsets have no times")));
}

TEST_F(ActivityDecoderTest, MarkersBecomeRangesOfTheirThread) {
  decode(marker_record(kStart, 1, 100, "step", 42));
  decode(marker_record(kStart, 2, 110, "forward", 42));
  decode(marker_record(kStart, 3, 115, "loader", 43));
  decode(marker_record(CUPTI_ACTIVITY_FLAG_MARKER_INSTANTANEOUS, 4, 116, "a point in time", 42));
  decode(marker_record(kEnd, 2, 150, nullptr, 42));
  decode(marker_record(kEnd, 3, 160, nullptr, 43));
  decode(marker_record(kEnd, 1, 200, nullptr, 42));
  const Timeline timeline = finish();
  ASSERT_EQ(timeline.ranges.size(), 3U);
  EXPECT_EQ(timeline.name(timeline.ranges[0].name), "step");
  EXPECT_EQ(timeline.ranges[0].time, (TimeSpan{0, 100}));
  EXPECT_EQ(timeline.ranges[0].thread, 42);
  EXPECT_EQ(timeline.ranges[0].kind, HostRange::Kind::annotation);
  EXPECT_EQ(timeline.name(timeline.ranges[1].name), "forward");
  EXPECT_EQ(timeline.ranges[1].time, (TimeSpan{10, 50}));
  EXPECT_EQ(timeline.name(timeline.ranges[2].name), "loader");
  EXPECT_EQ(timeline.ranges[2].thread, 43);
  EXPECT_THAT(timeline.notes, IsEmpty());
}

TEST_F(ActivityDecoderTest, AnEndMayComeBeforeItsBegin) {
  decode(marker_record(kEnd, 1, 200, nullptr));
  decode(marker_record(kStart, 1, 100, "across threads"));
  const Timeline timeline = finish();
  ASSERT_EQ(timeline.ranges.size(), 1U);
  EXPECT_EQ(timeline.ranges[0].time, (TimeSpan{0, 100}));
  EXPECT_THAT(timeline.notes, IsEmpty());
}

TEST_F(ActivityDecoderTest, OpenRangesEndWithTheRecording) {
  decode(marker_record(kStart, 1, 100, "training"));
  decode(kernel_record("gemm", 500, 900, 1));
  decode(marker_record(kEnd, 7, 600, nullptr));
  const Timeline timeline = finish();
  ASSERT_EQ(timeline.ranges.size(), 1U);
  EXPECT_EQ(timeline.ranges[0].time, (TimeSpan{0, 800})) << "up to the end of the kernel";
  EXPECT_THAT(timeline.notes, ElementsAre(HasSubstr("1 NVTX ranges were left out: they began before the recording")));
}

TEST_F(ActivityDecoderTest, TooManyOpenRangesAreCounted) {
  for (std::uint32_t id = 1; id <= ActivityDecoder::kMostOpenRanges + 3; ++id)
    decode(marker_record(kStart, id, id, "r"));
  decode(marker_record(kEnd, 1, 900'000, nullptr));
  EXPECT_THAT(finish().notes, ::testing::Contains(HasSubstr("3 NVTX ranges were left out")));
}

TEST_F(ActivityDecoderTest, TheDeviceIsNamed) {
  CUpti_ActivityDevice5 device{};
  device.kind = CUPTI_ACTIVITY_KIND_DEVICE;
  device.id = 1;
  device.name = "a GPU that the program does not see";
  decode(device);
  device.id = 0;
  device.isCudaVisible = 1;
  device.name = "NVIDIA H200";
  decode(device);
  decode(device);
  EXPECT_EQ(finish().device_name, "NVIDIA H200");
}

}  // namespace
}  // namespace pianola::profiling::activity_decoder_test

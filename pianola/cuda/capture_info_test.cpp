#include <pianola/cuda/capture_info.hpp>

#include <pianola/core/error.hpp>
#include <pianola/cuda/fake_driver.hpp>
#include <pianola/cuda/gpu_test.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace pianola::capture_info_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

using Nodes = std::vector<CUgraphNode>;

class CaptureInfo : public ::testing::Test {
 protected:
  Nodes advance(FakeDriver::Stream& from) {
    const auto nodes = frontier.advance(from.handle());
    return {nodes.begin(), nodes.end()};
  }

  FakeDriver fake;
  FakeDriver::Graph graph;
  FakeDriver::Stream stream{.status = CU_STREAM_CAPTURE_STATUS_ACTIVE, .capture_id = 1};
  CaptureFrontier frontier{fake.table()};
};

TEST_F(CaptureInfo, TellsTheStatus) {
  EXPECT_EQ(capture_status(stream.handle(), fake.table()), CaptureStatus::active);
  stream.status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
  EXPECT_EQ(capture_status(stream.handle(), fake.table()), CaptureStatus::invalidated);
  stream.status = CU_STREAM_CAPTURE_STATUS_NONE;
  EXPECT_EQ(capture_status(stream.handle(), fake.table()), CaptureStatus::none);
}

TEST_F(CaptureInfo, NamesACaptureUntilItEnds) {
  stream.capture_id = 7;
  EXPECT_EQ(capture_id(stream.handle(), fake.table()), 7U);
  stream.status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
  EXPECT_EQ(capture_id(stream.handle(), fake.table()), 7U);
  stream.status = CU_STREAM_CAPTURE_STATUS_NONE;
  EXPECT_EQ(capture_id(stream.handle(), fake.table()), 0U);
}

TEST_F(CaptureInfo, TakesARefusalOnTheDefaultStreamForNoCapture) {
  fake.failures["cuStreamIsCapturing"] = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  fake.failures["cuStreamGetCaptureInfo"] = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  EXPECT_EQ(capture_status(stream.handle(), fake.table()), CaptureStatus::none);
  EXPECT_EQ(capture_id(stream.handle(), fake.table()), 0U);
  EXPECT_THAT(advance(stream), IsEmpty());
}

TEST_F(CaptureInfo, ThrowsWhereTheDriverFails) {
  fake.failures["cuStreamIsCapturing"] = CUDA_ERROR_ILLEGAL_ADDRESS;
  EXPECT_THAT([&] { (void)capture_status(stream.handle(), fake.table()); },
              ThrowsMessage<DeviceError>(HasSubstr("cuStreamIsCapturing")));
  fake.failures["cuStreamGetCaptureInfo"] = CUDA_ERROR_ILLEGAL_ADDRESS;
  EXPECT_THROW(advance(stream), DeviceError);
}

TEST_F(CaptureInfo, ReportsEachNodeOfAChainOnce) {
  EXPECT_THAT(advance(stream), IsEmpty());
  CUgraphNode a = graph.add_empty();
  CUgraphNode b = graph.add_empty({a});
  stream.tips = {b};
  EXPECT_THAT(advance(stream), ElementsAre(a, b));
  EXPECT_THAT(advance(stream), IsEmpty());
  CUgraphNode c = graph.add_empty({b});
  stream.tips = {c};
  EXPECT_THAT(advance(stream), ElementsAre(c));
  EXPECT_EQ(frontier.known(), 3U);
}

TEST_F(CaptureInfo, PutsDependenciesFirstWhereBranchesJoin) {
  CUgraphNode root = graph.add_empty();
  CUgraphNode left = graph.add_empty({root});
  CUgraphNode right = graph.add_empty({root});
  CUgraphNode deep = graph.add_empty({right});
  CUgraphNode join = graph.add_empty({left, deep});
  stream.tips = {join, left};
  EXPECT_THAT(advance(stream), ElementsAre(root, left, right, deep, join));
}

TEST_F(CaptureInfo, FollowsMoreDependenciesThanUsual) {
  Nodes roots;
  for (int i = 0; i < 100; ++i) roots.push_back(graph.add_empty());
  CUgraphNode join = graph.add_empty(roots);
  stream.tips = {join};
  Nodes expected = roots;
  expected.push_back(join);
  EXPECT_EQ(advance(stream), expected);
}

TEST_F(CaptureInfo, FollowsProgrammaticEdges) {
  CUgraphNode a = graph.add_empty();
  CUgraphEdgeData programmatic = {};
  programmatic.type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC;
  CUgraphNode b = graph.add({.dependencies = {{a, programmatic}}});
  stream.tips = {b};
  EXPECT_THAT(advance(stream), ElementsAre(a, b));
}

TEST_F(CaptureInfo, SeesAllStreamsWhereTheGraphIsAsked) {
  stream.graph = &graph;
  CUgraphNode a = graph.add_empty();
  stream.tips = {a};
  EXPECT_THAT(advance(stream), ElementsAre(a));
  CUgraphNode event = graph.add_empty();
  CUgraphNode kernel = graph.add_empty({a, event});
  CUgraphNode leaf = graph.add_empty({kernel});
  EXPECT_THAT(advance(stream), IsEmpty());
  const auto nodes = frontier.advance_everywhere(stream.handle());
  EXPECT_THAT(Nodes(nodes.begin(), nodes.end()), ElementsAre(event, kernel, leaf));
  stream.tips = {kernel};
  EXPECT_THAT(advance(stream), IsEmpty());
  stream.status = CU_STREAM_CAPTURE_STATUS_NONE;
  EXPECT_THAT(frontier.advance_everywhere(stream.handle()), IsEmpty());
}

TEST_F(CaptureInfo, SeesAForkedStreamOnceItIsJoinedOrAsked) {
  FakeDriver::Stream side{.status = CU_STREAM_CAPTURE_STATUS_ACTIVE, .capture_id = 1};
  CUgraphNode a = graph.add_empty();
  CUgraphNode b = graph.add_empty({a});
  CUgraphNode forked = graph.add_empty({a});
  stream.tips = {b};
  side.tips = {forked};
  EXPECT_THAT(advance(stream), ElementsAre(a, b));
  EXPECT_THAT(advance(side), ElementsAre(forked));
  stream.tips = {b, forked};
  EXPECT_THAT(advance(stream), IsEmpty());
}

TEST_F(CaptureInfo, StartsAfreshWithEachCapture) {
  stream.tips = {graph.add_empty()};
  EXPECT_EQ(advance(stream), stream.tips);
  stream.capture_id = 2;
  EXPECT_EQ(advance(stream), stream.tips);
  EXPECT_EQ(frontier.known(), 1U);
}

TEST_F(CaptureInfo, ReportsNothingOutsideACapture) {
  stream.tips = {graph.add_empty()};
  stream.status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
  EXPECT_THAT(advance(stream), IsEmpty());
  stream.status = CU_STREAM_CAPTURE_STATUS_NONE;
  EXPECT_THAT(advance(stream), IsEmpty());
}

class GpuCaptureInfo : public GpuTest {};

TEST_F(GpuCaptureInfo, FollowsARealCapture) {
  CaptureFrontier frontier;
  EXPECT_EQ(capture_status(stream), CaptureStatus::none);
  EXPECT_THAT(frontier.advance(stream), IsEmpty());
  begin_capture();
  EXPECT_EQ(capture_status(stream), CaptureStatus::active);
  EXPECT_THAT(frontier.advance(stream), IsEmpty());
  launch_add(stream, data, 1);
  EXPECT_EQ(frontier.advance(stream).size(), 1U);
  launch_add(stream, data, 1);
  launch_add(stream, data, 1);
  EXPECT_EQ(frontier.advance(stream).size(), 2U);
  EXPECT_THAT(frontier.advance(stream), IsEmpty());
  driver->graph_destroy(end_capture());
  EXPECT_EQ(capture_status(stream), CaptureStatus::none);
}

TEST_F(GpuCaptureInfo, SeesTheNodesOfAJoinedStream) {
  CUstream side = nullptr;
  CUevent event = nullptr;
  check(driver->stream_create(&side, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  check(driver->event_create(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  CaptureFrontier frontier;
  begin_capture();
  launch_add(stream, data, 1);
  check(driver->event_record(event, stream), "cuEventRecord");
  check(driver->stream_wait_event(side, event, 0), "cuStreamWaitEvent");
  launch_add(side, data + 4, 1);
  EXPECT_EQ(frontier.advance(stream).size(), 1U);
  check(driver->event_record(event, side), "cuEventRecord");
  check(driver->stream_wait_event(stream, event, 0), "cuStreamWaitEvent");
  EXPECT_EQ(frontier.advance(stream).size(), 1U);
  driver->graph_destroy(end_capture());
  driver->event_destroy(event);
  driver->stream_destroy(side);
}

TEST_F(GpuCaptureInfo, NoticesAnInvalidatedCapture) {
  begin_capture();
  launch_add(stream, data, 1);
  EXPECT_NE(driver->stream_synchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(capture_status(stream), CaptureStatus::invalidated);
  CaptureFrontier frontier;
  EXPECT_THAT(frontier.advance(stream), IsEmpty());
  CUgraph graph = nullptr;
  EXPECT_EQ(driver->stream_end_capture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(graph, nullptr);
  EXPECT_EQ(capture_status(stream), CaptureStatus::none);
}

}  // namespace
}  // namespace pianola::capture_info_test

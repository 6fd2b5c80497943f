#include <pianola/cuda/executable.hpp>

#include <pianola/core/error.hpp>
#include <pianola/core/out_of_memory_error.hpp>
#include <pianola/cuda/fake_driver.hpp>
#include <pianola/cuda/gpu_test.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <type_traits>
#include <utility>

namespace pianola::executable_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;

static_assert(std::is_nothrow_move_constructible_v<Executable> && std::is_nothrow_move_assignable_v<Executable>);
static_assert(!std::is_copy_constructible_v<Executable> && !std::is_copy_assignable_v<Executable>);

class ExecutableTest : public ::testing::Test {
 protected:
  Executable make(const InstantiateOptions& options = {}) {
    return Executable::instantiate(graph.handle(), options, fake.table());
  }

  FakeDriver fake;
  FakeDriver::Graph graph;
  FakeDriver::Stream stream;
};

TEST_F(ExecutableTest, PassesItsOptionsOn) {
  { const Executable plain = make(); }
  EXPECT_EQ(fake.instantiated.flags, 0U);
  {
    const Executable full =
        make({.auto_free_on_launch = true, .use_node_priority = true, .upload_on = stream.handle()});
  }
  EXPECT_EQ(fake.instantiated.flags, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH |
                                         CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY |
                                         CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD);
  EXPECT_EQ(fake.instantiated.hUploadStream, stream.handle());
  { const Executable device = make({.device_launch = true}); }
  EXPECT_EQ(fake.instantiated.flags, static_cast<cuuint64_t>(CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH));
}

TEST_F(ExecutableTest, RefusesOptionsThatExcludeEachOther) {
  EXPECT_THAT([&] { (void)make({.auto_free_on_launch = true, .device_launch = true}); },
              ThrowsMessage<UsageError>(HasSubstr("exclude each other")));
  EXPECT_THAT(fake.log, IsEmpty());
}

TEST_F(ExecutableTest, NamesTheNodeThatPreventsInstantiation) {
  FakeDriver::Function kernel{.symbol = "_ZN2at3addEPfi", .parameters = {}};
  FakeDriver::Node node{.type = CU_GRAPH_NODE_TYPE_KERNEL};
  node.kernel.func = FakeDriver::as_function(kernel);
  fake.error_node = graph.add(node);
  fake.instantiate_result = CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE;
  fake.failures["cuGraphInstantiateWithParams"] = CUDA_ERROR_INVALID_VALUE;
  EXPECT_THAT([&] { (void)make(); },
              ThrowsMessage<DeviceError>(AllOf(HasSubstr("cuGraphInstantiate failed: CUDA_ERROR_INVALID_VALUE"),
                                               HasSubstr("cycle"), HasSubstr("where: node: kernel at::add"))));
  EXPECT_EQ(fake.mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

TEST_F(ExecutableTest, WithoutRoomItIsAnErrorOfMemory) {
  fake.failures["cuGraphInstantiateWithParams"] = CUDA_ERROR_OUT_OF_MEMORY;
  EXPECT_THAT([&] { (void)make(); },
              ThrowsMessage<OutOfMemoryError>(
                  AllOf(HasSubstr("cuGraphInstantiate failed: CUDA_ERROR_OUT_OF_MEMORY"), HasSubstr("[PG908]"))));
  EXPECT_THAT(fake.live, IsEmpty());
}

TEST_F(ExecutableTest, LaunchesWithOneCall) {
  const Executable exec = make();
  fake.log.clear();
  exec.launch(stream.handle());
  EXPECT_THAT(fake.log, ::testing::ElementsAre("cuGraphLaunch"));
}

TEST_F(ExecutableTest, SaysWhatFailed) {
  const Executable exec = make();
  fake.failures["cuGraphLaunch"] = CUDA_ERROR_OUT_OF_MEMORY;
  fake.failures["cuGraphUpload"] = CUDA_ERROR_INVALID_HANDLE;
  EXPECT_THAT([&] { exec.launch(stream.handle()); },
              ThrowsMessage<DeviceError>(HasSubstr("cuGraphLaunch failed: CUDA_ERROR_OUT_OF_MEMORY")));
  EXPECT_THAT([&] { exec.upload(stream.handle()); }, ThrowsMessage<DeviceError>(HasSubstr("cuGraphUpload failed")));
}

TEST_F(ExecutableTest, DestroysWhatItHoldsOnce) {
  {
    Executable first = make();
    Executable second = std::move(first);
    EXPECT_EQ(first.get(), nullptr);  // NOLINT(bugprone-use-after-move): that is the question.
    first = std::move(second);
    EXPECT_THAT(fake.live, SizeIs(1));
    Executable& itself = first;
    first = std::move(itself);
    EXPECT_NE(first.get(), nullptr);
  }
  EXPECT_THAT(fake.live, IsEmpty());
  EXPECT_EQ(fake.calls("cuGraphExecDestroy"), 1U);
}

TEST_F(ExecutableTest, DestroysTheOldOneWhenAssignedTo) {
  Executable exec = make();
  exec = make();
  EXPECT_THAT(fake.live, SizeIs(1));
  exec.reset();
  exec.reset();
  EXPECT_THAT(fake.live, IsEmpty());
}

TEST_F(ExecutableTest, GivesItsHandleAway) {
  CUgraphExec raw = nullptr;
  {
    Executable exec = make();
    raw = exec.release();
  }
  EXPECT_EQ(fake.calls("cuGraphExecDestroy"), 0U);
  fake.table().graph_exec_destroy(raw);
}

TEST_F(ExecutableTest, IsDestroyedInRelaxedModeWhichIsPutBack) {
  fake.mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
  make().reset();
  EXPECT_EQ(fake.mode_at_destroy, CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_EQ(fake.mode, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
}

TEST_F(ExecutableTest, ReportsAFailedDestructionAndGoesOn) {
  fake.failures["cuGraphExecDestroy"] = CUDA_ERROR_ILLEGAL_ADDRESS;
  ::testing::internal::CaptureStderr();
  { const Executable exec = make(); }
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("cuGraphExecDestroy failed with code 700"), HasSubstr("not mapped")));
}

TEST_F(ExecutableTest, IsSilentWhenTheDriverIsGoneAtTheEndOfTheProgram) {
  fake.failures["cuGraphExecDestroy"] = CUDA_ERROR_DEINITIALIZED;
  ::testing::internal::CaptureStderr();
  { const Executable exec = make(); }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST_F(ExecutableTest, SaysWhyAndWhereAnUpdateIsRefused) {
  Executable exec = make();
  EXPECT_EQ(exec.update(graph.handle()), std::nullopt);
  fake.error_node = graph.add({.type = CU_GRAPH_NODE_TYPE_HOST});
  fake.update_result = CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
  fake.failures["cuGraphExecUpdate"] = CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  const std::optional<UpdateRefusal> refusal = exec.update(graph.handle());
  ASSERT_TRUE(refusal.has_value());
  EXPECT_EQ(refusal->result, CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED);
  EXPECT_EQ(refusal->reason, "a node is of another type");
  EXPECT_EQ(refusal->node, fake.error_node);
  EXPECT_EQ(refusal->node_text, "host");
}

TEST_F(ExecutableTest, ThrowsWhereAnUpdateFailsForOtherReasons) {
  Executable exec = make();
  fake.failures["cuGraphExecUpdate"] = CUDA_ERROR_ILLEGAL_ADDRESS;
  EXPECT_THAT([&] { (void)exec.update(graph.handle()); },
              ThrowsMessage<DeviceError>(HasSubstr("cuGraphExecUpdate failed")));
}

class GpuExecutable : public GpuTest {};

TEST_F(GpuExecutable, RunsTheGraphAtEachLaunch) {
  CUgraph graph = chain(3, 2);
  const Executable exec = Executable::instantiate(graph, {.upload_on = stream});
  driver->graph_destroy(graph);
  EXPECT_EQ(read(data), 0U);
  exec.launch(stream);
  EXPECT_EQ(read(data), 6U);
  exec.upload(stream);
  for (int i = 0; i < 10; ++i) exec.launch(stream);
  EXPECT_EQ(read(data), 66U);
}

TEST_F(GpuExecutable, TakesOverNewParameters) {
  CUgraph before = chain(2, 1);
  CUgraph after = chain(2, 100);
  Executable exec = Executable::instantiate(before);
  EXPECT_EQ(exec.update(after), std::nullopt);
  exec.launch(stream);
  EXPECT_EQ(read(data), 200U);
  driver->graph_destroy(before);
  driver->graph_destroy(after);
}

TEST_F(GpuExecutable, RefusesAnotherTopologyAndStaysAsItWas) {
  CUgraph two = chain(2, 1);
  CUgraph three = chain(3, 100);
  Executable exec = Executable::instantiate(two);
  const std::optional<UpdateRefusal> refusal = exec.update(three);
  ASSERT_TRUE(refusal.has_value());
  EXPECT_EQ(refusal->result, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
  EXPECT_THAT(refusal->reason, HasSubstr("number of nodes"));
  exec.launch(stream);
  EXPECT_EQ(read(data), 2U);
  driver->graph_destroy(two);
  driver->graph_destroy(three);
}

TEST_F(GpuExecutable, MayBeMadeAndDestroyedWhileAnotherCaptureIsOpen) {
  CUgraph graph = chain(2, 1);
  Executable old = Executable::instantiate(graph);
  begin_capture();
  launch_add(stream, data, 5);
  old.reset();
  { const Executable short_lived = Executable::instantiate(graph); }
  launch_add(stream, data, 5);
  CUgraph captured = end_capture();
  const Executable exec = Executable::instantiate(captured);
  exec.launch(stream);
  EXPECT_EQ(read(data), 10U);
  driver->graph_destroy(captured);
  driver->graph_destroy(graph);
}

TEST_F(GpuExecutable, MayBeDestroyedWhileItRuns) {
  CUgraph graph = chain(200, 1);
  Executable exec = Executable::instantiate(graph);
  exec.launch(stream);
  exec.reset();
  EXPECT_EQ(read(data), 200U);
  driver->graph_destroy(graph);
}

}  // namespace
}  // namespace pianola::executable_test

#include <pianola/profile/read/chrome_trace.hpp>

#include <pianola/profile/testing/step_trace.hpp>
#include <pianola/profile/testing/synthetic_trace.hpp>
#include <pianola/profile/testing/trace_file.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace pianola::chrome_trace_test {
namespace {

using profiling::TraceFile;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

Timeline read(const std::string& text) {
  const TraceFile file(text);
  return read_chrome_trace(file.path());
}

Timeline read_events(const std::string& events) { return read(R"({"traceEvents": [)" + events + "]}"); }

std::vector<std::string> names(const Timeline& timeline, const auto& events) {
  std::vector<std::string> names;
  for (const auto& event : events) names.push_back(timeline.name(event.name));
  return names;
}

TEST(ChromeTraceTest, ReadsWorkOfDevices) {
  const Timeline timeline = read(profiling::kStepTrace);
  ASSERT_THAT(names(timeline, timeline.work),
              ElementsAre("gemm<float>", "Memcpy HtoD (Pageable -> Device)", "Memset (Device)", "node 1", "node 2"));
  const DeviceWork& gemm = timeline.work[0];
  EXPECT_EQ(gemm.time, (TimeSpan{111'000, 114'008})) << "the base of 1000 ns is added";
  EXPECT_EQ(gemm.kind, DeviceWork::Kind::kernel);
  EXPECT_EQ(gemm.process, 0);
  EXPECT_EQ(gemm.device, 0);
  EXPECT_EQ(gemm.stream, 7);
  EXPECT_EQ(gemm.correlation, 7u);
  EXPECT_EQ(gemm.graph, 0u);
  EXPECT_EQ(gemm.bytes, 0u);
  const DeviceWork& copy = timeline.work[1];
  EXPECT_EQ(copy.kind, DeviceWork::Kind::copy);
  EXPECT_EQ(copy.device, 1);
  EXPECT_EQ(copy.stream, 20);
  EXPECT_EQ(copy.bytes, 4096u);
  EXPECT_EQ(timeline.work[2].kind, DeviceWork::Kind::memset);
  EXPECT_EQ(timeline.work[2].bytes, 16u);
  EXPECT_EQ(timeline.work[3].graph, 3u);
  EXPECT_EQ(timeline.work[4].graph, 3u) << "from the upper half of the node's number";
}

TEST(ChromeTraceTest, ReadsCallsWithWhatTheyDo) {
  const Timeline timeline = read(profiling::kStepTrace);
  ASSERT_THAT(names(timeline, timeline.calls),
              ElementsAre("cudaLaunchKernel", "cuLaunchKernelEx", "cudaGraphLaunch", "cudaStreamSynchronize"));
  EXPECT_EQ(timeline.calls[0].time, (TimeSpan{104'500, 108'750}));
  EXPECT_EQ(timeline.calls[0].thread, 43);
  EXPECT_EQ(timeline.calls[0].correlation, 7u);
  std::vector<HostCall::Kind> kinds;
  for (const HostCall& call : timeline.calls) kinds.push_back(call.kind);
  EXPECT_THAT(kinds, ElementsAre(HostCall::Kind::launch, HostCall::Kind::launch, HostCall::Kind::graph_launch,
                                 HostCall::Kind::synchronize));
}

// What python/pianola/_nsight.py makes of exports of Nsight Systems.
constexpr const char* kNsightTrace = R"({"pianolaSource": "Nsight Systems export 'report.sqlite'", "traceEvents": [
  {"ph": "X", "cat": "nsys_call", "name": "cudaLaunchKernel_v7000", "ts": 4, "dur": 3, "pid": 0, "tid": 1,
   "args": {"correlation": 1}},
  {"ph": "X", "cat": "nsys_call", "name": "cuLaunchKernel", "ts": 5, "dur": 1, "pid": 0, "tid": 1,
   "args": {"correlation": 777}},
  {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 10, "dur": 5, "pid": 0, "tid": 7,
   "args": {"device": 0, "stream": 7, "correlation": 777, "graph id": 0, "graph node id": 0, "process": 0}},
  {"ph": "X", "cat": "nsys_range", "name": "aten::addmm, seq = 3, op_id = 17, sizes = [[8, 4]]", "ts": 3, "dur": 6,
   "pid": 0, "tid": 1, "args": {}},
  {"ph": "X", "cat": "nsys_range", "name": "train", "ts": 2, "dur": 5, "pid": 0, "tid": 1, "args": {}}],
 "deviceProperties": [{"name": "NVIDIA H200"}], "pianolaNotes": ["1 migration was left out"]})";

TEST(ChromeTraceTest, ReadsWhatPythonMakesOfExportsOfNsight) {
  const Timeline timeline = read(kNsightTrace);
  EXPECT_EQ(timeline.source, "Nsight Systems export 'report.sqlite'");
  EXPECT_EQ(timeline.device_name, "NVIDIA H200");
  EXPECT_THAT(names(timeline, timeline.calls), ElementsAre("cudaLaunchKernel"))
      << "the runtime's, which calls the driver";
  EXPECT_EQ(timeline.calls[0].kind, HostCall::Kind::launch);
  EXPECT_EQ(timeline.work[0].correlation, 1U) << "of the outer call";
  ASSERT_THAT(names(timeline, timeline.ranges), ElementsAre("train", "aten::addmm"));
  EXPECT_EQ(timeline.ranges[0].kind, HostRange::Kind::annotation);
  EXPECT_EQ(timeline.ranges[1].kind, HostRange::Kind::operation);
  EXPECT_THAT(timeline.notes, ElementsAre("1 range ended after the one in which it began, and was cut there",
                                          "1 migration was left out"));
}

TEST(ChromeTraceTest, ReadsRangesOfAnnotationsModulesOperationsAndAutogradAndNoOtherPython) {
  const Timeline timeline = read(profiling::kStepTrace);
  ASSERT_THAT(names(timeline, timeline.ranges), ElementsAre("train", "nn.Module: Linear_3", "aten::addmm",
                                                            "autograd::engine::evaluate_function: AddmmBackward0"));
  std::vector<HostRange::Kind> kinds;
  for (const HostRange& range : timeline.ranges) kinds.push_back(range.kind);
  EXPECT_THAT(kinds, ElementsAre(HostRange::Kind::annotation, HostRange::Kind::module, HostRange::Kind::operation,
                                 HostRange::Kind::backward));
  EXPECT_EQ(timeline.ranges[1].time, (TimeSpan{102'000, 122'000})) << "whole microseconds";
  EXPECT_EQ(timeline.ranges[2].time, (TimeSpan{103'001, 112'000}));
  EXPECT_EQ(timeline.ranges[3].thread, 44);
}

TEST(ChromeTraceTest, SaysWhatItReadAndHasNothingToNote) {
  const TraceFile file(profiling::kStepTrace);
  const Timeline timeline = read_chrome_trace(file.path());
  EXPECT_EQ(timeline.source, "Chrome trace '" + file.path().string() + "'");
  EXPECT_EQ(timeline.device_name, "NVIDIA H200");
  EXPECT_THAT(timeline.notes, IsEmpty());
}

TEST(ChromeTraceTest, ReadsABareArrayOfEvents) {
  const Timeline timeline =
      read(R"([{"ph": "X", "cat": "kernel", "name": "gemm", "pid": 2, "tid": 7, "ts": 5, "dur": 1}])");
  ASSERT_EQ(timeline.work.size(), 1u);
  EXPECT_EQ(timeline.work[0].device, 2) << "without args the process is the device";
  EXPECT_EQ(timeline.work[0].stream, 7) << "and the thread the stream";
  EXPECT_EQ(timeline.work[0].time, (TimeSpan{5000, 6000}));
}

TEST(ChromeTraceTest, FindsFieldsInWhateverOrder) {
  const Timeline timeline = read(R"({"traceName": "x", "traceEvents": [
      {"args": {"stream": 9, "device": 1}, "dur": 2, "ts": 3, "tid": 0, "pid": 0, "name": "gemm", "cat": "kernel",
       "ph": "X"}], "baseTimeNanoseconds": 50, "deviceProperties": [{"name": "late"}]})");
  ASSERT_EQ(timeline.work.size(), 1u);
  EXPECT_EQ(timeline.work[0].time, (TimeSpan{3050, 5050}));
  EXPECT_EQ(timeline.work[0].stream, 9);
  EXPECT_EQ(timeline.device_name, "late");
}

TEST(ChromeTraceTest, ReadsTheTimeOfAnUnrecordedIterationWhereThereIsOne) {
  const std::string events = R"(, "traceEvents": [{"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1, "dur": 1}]})";
  EXPECT_EQ(read(R"({"pianolaUnrecordedNanoseconds": 4260000)" + events).unrecorded, 4'260'000);
  EXPECT_EQ(read(R"({"pianolaUnrecordedNanoseconds": -5)" + events).unrecorded, 0);
  EXPECT_EQ(read(R"({"pianolaUnrecordedNanoseconds": "soon")" + events).unrecorded, 0);
  EXPECT_EQ(read(R"({"other": {"pianolaUnrecordedNanoseconds": 7})" + events).unrecorded, 0) << "nested deeper";
}

TEST(ChromeTraceTest, ReadsTheMemoryOfEachDeviceAndWhatWasLeftOfOne) {
  const std::string events = R"("traceEvents": [{"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1, "dur": 1}]})";
  const Timeline timeline = read(R"({"deviceProperties": [{"id": 0, "name": "a", "totalGlobalMem": 150109880320},
      {"totalGlobalMem": 1024, "id": 3, "warpSize": 32}], "pianolaMemoryLeft": [3, 700, 60, 5], )" +
                                 events);
  ASSERT_EQ(timeline.devices.size(), 2U);
  EXPECT_EQ(timeline.devices[0].device, 0);
  EXPECT_EQ(timeline.devices[0].total, 150'109'880'320U);
  EXPECT_FALSE(timeline.devices[0].left);
  EXPECT_EQ(timeline.devices[1].device, 3);
  EXPECT_EQ(timeline.devices[1].total, 1024U);
  ASSERT_TRUE(timeline.devices[1].left);
  EXPECT_EQ(timeline.devices[1].left->of_driver, 700U);
  EXPECT_EQ(timeline.devices[1].left->cached, 60U);
  EXPECT_EQ(timeline.devices[1].left->returnable, 5U);
  for (const char* wrong : {"[3, 700, 60]", "[3, 700, 60, -5]", "[3, 700, 60, \"5\"]", "7", "[-9e9, 1, 2, 3]"}) {
    EXPECT_TRUE(read(R"({"pianolaMemoryLeft": )" + std::string(wrong) + ", " + events).devices.empty()) << wrong;
  }
  EXPECT_EQ(read(R"({"deviceProperties": [{"id": 0, "totalGlobalMem": -4}], )" + events).devices[0].total, 0U);
}

TEST(ChromeTraceTest, DoesNotMistakeWhatIsNestedDeeperForAnEvent) {
  const Timeline timeline = read(R"({"other": {"traceEvents": [{"ph": "X", "cat": "kernel", "name": "no", "ts": 1}]},
      "traceEvents": [{"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 5, "dur": 1,
      "extra": {"args": {"stream": 99}, "name": "no", "dur": 77, "list": [{"cat": "x"}]},
      "args": {"more": {"stream": 98, "bytes": 5}, "stream": 8, "list": [1, [2]]}}]})");
  ASSERT_THAT(names(timeline, timeline.work), ElementsAre("gemm"));
  EXPECT_EQ(timeline.work[0].stream, 8);
  EXPECT_EQ(timeline.work[0].bytes, 0u);
  EXPECT_EQ(timeline.work[0].time, (TimeSpan{5000, 6000}));
  EXPECT_THAT(timeline.notes, IsEmpty());
}

TEST(ChromeTraceTest, CountsEventsThatItLeavesOut) {
  const std::string good = R"({"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 5, "dur": 1})";
  const Timeline timeline = read_events(good + R"(,
      {"ph": "X", "cat": "kernel", "name": "without dur", "pid": 0, "tid": 7, "ts": 5},
      {"ph": "X", "cat": "kernel", "name": "ts in words", "pid": 0, "tid": 7, "ts": "5", "dur": 1},
      {"ph": "X", "cat": "kernel", "name": ["list"], "pid": 0, "tid": 7, "ts": 5, "dur": 1},
      {"ph": "X", "cat": "kernel", "name": "bad arg", "pid": 0, "tid": 7, "ts": 5, "dur": 1, "args": {"stream": "7"}},
      {"ph": "X", "cat": "kernel", "name": "no device", "pid": 4294967296, "tid": 7, "ts": 5, "dur": 1},
      {"ph": "X", "cat": "kernel", "name": "nowhere", "ts": 5, "dur": 1},
      {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": "CPU", "tid": 1, "ts": 5, "dur": 1},
      {"ph": "X", "cat": "gpu_memcpy", "name": "negative count", "pid": 0, "tid": 1, "ts": 5, "dur": 1,
       "args": {"correlation": -1}},
      {"ph": "X", "cat": "unheard of", "name": 5, "ts": null},
      {"ph": "X", "cat": ["kernel"], "name": "no category"}, 17, null, ["kernel"])");
  EXPECT_THAT(names(timeline, timeline.work), ElementsAre("gemm"));
  EXPECT_THAT(timeline.calls, IsEmpty());
  EXPECT_THAT(timeline.notes,
              ElementsAre("1 event without a duration was left out",
                          "7 events were left out: a field is missing or of the wrong type, the first time in "
                          "'ts in words'"));
}

TEST(ChromeTraceTest, TakesTheDeviceFromTheArgsWhereProcessAndThreadAreWords) {
  const Timeline timeline =
      read_events(R"({"ph": "X", "cat": "kernel", "name": "gemm", "pid": "GPU 1", "tid": "stream 7",
      "ts": 5, "dur": 1, "args": {"device": 1, "stream": 7}})");
  ASSERT_EQ(timeline.work.size(), 1u);
  EXPECT_EQ(timeline.work[0].device, 1);
  EXPECT_EQ(timeline.work[0].stream, 7);
  EXPECT_THAT(timeline.notes, IsEmpty());
}

TEST(ChromeTraceTest, SaysThatNoEventIsOfUse) {
  const Timeline timeline =
      read_events(R"({"ph": "X", "cat": "v8", "name": "gc", "pid": 1, "tid": 1, "ts": 1, "dur": 1})");
  EXPECT_THAT(timeline.notes,
              ElementsAre("none of its 1 events is work of a device, a call of CUDA or a range of torch"));
}

TEST(ChromeTraceTest, CutsRangesThatOverlapAndSaysHowMany) {
  const Timeline timeline = read_events(R"(
      {"ph": "X", "cat": "user_annotation", "name": "nccl:all_reduce", "pid": 1, "tid": 1, "ts": 0, "dur": 10},
      {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 8, "dur": 4})");
  EXPECT_EQ(timeline.ranges[1].time, (TimeSpan{8000, 10'000}));
  EXPECT_THAT(timeline.notes, ElementsAre("1 range ended after the one in which it began, and was cut there"));
}

std::string call_of(int pid, int correlation, const char* name = "cudaLaunchKernel") {
  return R"({"ph": "X", "cat": "cuda_runtime", "name": ")" + std::string(name) + R"(", "pid": )" + std::to_string(pid) +
         R"(, "tid": 1, "ts": 1, "dur": 1, "args": {"correlation": )" + std::to_string(correlation) + "}}";
}

std::string kernel_of(int correlation, const std::string& more = "") {
  return R"({"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 5, "dur": 1,
      "args": {"correlation": )" +
         std::to_string(correlation) + more + "}}";
}

std::vector<std::int32_t> processes_of_work(const Timeline& timeline) {
  std::vector<std::int32_t> processes;
  for (const DeviceWork& work : timeline.work) processes.push_back(work.process);
  return processes;
}

TEST(ChromeTraceTest, NumbersProcessesAndFindsThatOfWorkByItsCall) {
  const Timeline timeline =
      read_events(call_of(900, 1) + "," + call_of(800, 2) + "," + kernel_of(2) + "," + kernel_of(1));
  EXPECT_EQ(timeline.calls[0].process, 0);
  EXPECT_EQ(timeline.calls[1].process, 1);
  EXPECT_THAT(processes_of_work(timeline), ElementsAre(1, 0));
  EXPECT_THAT(timeline.notes, IsEmpty());
}

TEST(ChromeTraceTest, SaysWhereItCannotTellTheProcessOfWork) {
  const Timeline timeline =
      read_events(call_of(900, 1) + "," + call_of(800, 1) + "," + kernel_of(1) + "," + kernel_of(77));
  EXPECT_THAT(processes_of_work(timeline), ElementsAre(0, 0));
  EXPECT_THAT(timeline.notes, ElementsAre("the trace has 2 processes and does not say which of them issued 2 pieces of "
                                          "work: counted as the first one's"));
}

TEST(ChromeTraceTest, TakesTheGraphFromTheUpperHalfOfTheNodesNumber) {
  const Timeline timeline = read_events(kernel_of(4, R"(, "graph node id": 21474836483)"));
  ASSERT_EQ(timeline.work.size(), 1u);
  EXPECT_EQ(timeline.work[0].graph, 5u);
}

TEST(ChromeTraceTest, TakesTheGraphOfWorkThatNamesNoneFromItsLaunch) {
  const Timeline timeline = read_events(call_of(9, 4, "cudaGraphLaunch") + "," + call_of(9, 5) + "," +
                                        kernel_of(4, R"(, "graph id": 12)") + "," + kernel_of(4) + "," + kernel_of(5));
  std::vector<std::uint64_t> graphs;
  for (const DeviceWork& work : timeline.work) graphs.push_back(work.graph);
  EXPECT_THAT(graphs, ElementsAre(12, 12, 0));
  EXPECT_THAT(timeline.notes, IsEmpty());
}

TEST(ChromeTraceTest, KnowsWorkOfGraphsInTracesThatNameNoGraph) {
  const Timeline timeline = read_events(call_of(9, 4, "cudaGraphLaunch") + "," + call_of(9, 5) + "," + kernel_of(4) +
                                        "," + kernel_of(4) + "," + kernel_of(5));
  std::vector<std::uint64_t> graphs;
  for (const DeviceWork& work : timeline.work) graphs.push_back(work.graph);
  EXPECT_THAT(graphs, ElementsAre(1, 1, 0));
  EXPECT_THAT(timeline.notes, ElementsAre("2 pieces of work of graph launches name no graph: counted as graph 1"));
}

std::string copy_of(int correlation) {
  std::string copy = kernel_of(correlation);
  copy.replace(copy.find("\"kernel\""), 8, "\"gpu_memcpy\"");
  return copy;
}

// torch.profiler records few of the driver's calls, and not cuGraphLaunch. One call copies several blocks at once, or launches
// one kernel: only a graph does more.
TEST(ChromeTraceTest, KnowsLaunchesOfGraphsThatWereNotRecordedByTheirWork) {
  const Timeline timeline =
      read_events(call_of(9, 5) + "," + kernel_of(4) + "," + copy_of(4) + "," + kernel_of(4) + "," + kernel_of(5) +
                  "," + copy_of(6) + "," + copy_of(6) + "," + kernel_of(7) + "," + kernel_of(8) + "," + copy_of(8));
  std::vector<std::uint64_t> graphs;
  for (const DeviceWork& work : timeline.work) graphs.push_back(work.graph);
  EXPECT_THAT(graphs, ElementsAre(1, 1, 1, 0, 0, 0, 0, 1, 1));
  EXPECT_THAT(timeline.notes,
              ElementsAre(::testing::HasSubstr(
                              "2 launches of graphs were not recorded, as torch.profiler does with the driver's"),
                          "5 pieces of work of graph launches name no graph: counted as graph 1"));
}

// As torch 2.11 writes them; other fields are left out.
std::string memory_event(const std::string& name, const std::string& args) {
  return R"({"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": ")" + name +
         R"(", "pid": 42, "tid": 44, "ts": 130.25, "args": {)" + args + R"(, "finished": false, "Ev Idx": 663}})";
}

constexpr const char* kAllocated =
    R"("Total Reserved": 2097152, "Total Allocated": 8704, "Bytes": 512, "Device Id": 1, "Device Type": 1,
       "Addr": 139637976727552)";
constexpr const char* kFreed =
    R"("Total Reserved": 0, "Total Allocated": 8192, "Bytes": -4, "Device Id": -1, "Device Type": 0, "Addr": 7)";

TEST(ChromeTraceTest, ReadsWhatTheAllocatorDid) {
  const Timeline timeline = read(R"({"baseTimeNanoseconds": 1000, "traceEvents": [)" +
                                 memory_event("[memory]", kAllocated) + "," + memory_event("[memory]", kFreed) + "]}");
  ASSERT_EQ(timeline.memory.size(), 2u);
  const MemoryEvent& made = timeline.memory[0];
  EXPECT_EQ(made.time, 131'250) << "the base of 1000 ns is added";
  EXPECT_EQ(made.address, 139'637'976'727'552u);
  EXPECT_EQ(made.bytes, 512);
  EXPECT_EQ(made.allocated, 8704u);
  EXPECT_EQ(made.reserved, 2'097'152u);
  EXPECT_EQ(made.process, 0);
  EXPECT_EQ(made.device, 1);
  EXPECT_EQ(made.thread, 44);
  EXPECT_EQ(timeline.memory[1].bytes, -4);
  EXPECT_EQ(timeline.memory[1].device, -1) << "the CPU";
}

TEST(ChromeTraceTest, PassesOverOtherMomentsAndAllocatorsOfOtherDevices) {
  const std::string other = R"("Total Allocated": 5, "Bytes": 5, "Device Id": 0, "Device Type": 13, "Addr": 7)";
  const Timeline timeline =
      read_events(memory_event("[OutOfMemory]", kAllocated) + "," + memory_event("[memory]", other));
  EXPECT_THAT(timeline.memory, IsEmpty());
  EXPECT_THAT(timeline.notes,
              ElementsAre("none of its 2 events is work of a device, a call of CUDA or a range of torch"));
}

TEST(ChromeTraceTest, CountsEventsOfTheAllocatorThatItLeavesOut) {
  const Timeline timeline = read_events(
      call_of(42, 1) + "," + memory_event("[memory]", R"("Bytes": "5", "Device Id": 0, "Device Type": 1, "Addr": 7)") +
      "," + memory_event("[memory]", R"("Bytes": 5, "Device Id": 0, "Device Type": 1)") + "," +
      memory_event("[memory]", R"("Bytes": 18446744073709551615, "Device Id": 0, "Device Type": 1, "Addr": 7)") + "," +
      memory_event("[memory]", R"("Bytes": 99999999999999999, "Device Id": 0, "Device Type": 1, "Addr": 7)"));
  EXPECT_THAT(timeline.memory, IsEmpty());
  EXPECT_THAT(timeline.notes,
              ::testing::Contains("4 events were left out: a field is missing or of the wrong type, the first time in "
                                  "'[memory]'"));
}

TEST(ChromeTraceTest, WithoutADeviceIsAProfileOfTheCpu) {
  const Timeline timeline = read_events(R"(
      {"ph": "X", "cat": "cpu_op", "name": "aten::linear", "pid": 1, "tid": 5, "ts": 0, "dur": 10},
      {"ph": "X", "cat": "cpu_op", "name": "aten::addmm", "pid": 1, "tid": 5, "ts": 2, "dur": 7})");
  EXPECT_EQ(timeline.ranges.size(), 2u);
  ASSERT_THAT(names(timeline, timeline.work), ElementsAre("aten::linear"));
  EXPECT_EQ(timeline.work[0].device, -1);
  EXPECT_EQ(timeline.work[0].stream, 5);
  EXPECT_EQ(timeline.work[0].kind, DeviceWork::Kind::operation);
  EXPECT_THAT(timeline.notes, IsEmpty());
}

TEST(ChromeTraceTest, ThatLaunchesButHasNoWorkIsNoProfileOfTheCpu) {
  const Timeline timeline =
      read_events(call_of(1, 4) +
                  R"(,{"ph": "X", "cat": "cpu_op", "name": "aten::linear", "pid": 1, "tid": 1, "ts": 0, "dur": 10})");
  EXPECT_THAT(timeline.work, IsEmpty());
  EXPECT_THAT(timeline.notes,
              ElementsAre("the trace has 1 call that launches work, but no work of a device: it was cut, "
                          "or ProfilerActivity.CUDA was off"));
}

TEST(ChromeTraceTest, ReadsManyEventsWithoutKeepingTheirText) {
  const TraceFile file;
  profiling::write_synthetic_trace(file.path(), 30'000);
  ASSERT_GT(std::filesystem::file_size(file.path()), 6'000'000u);
  const profiling::SyntheticCounts counts = profiling::synthetic_counts(30'000);
  const Timeline timeline = read_chrome_trace(file.path());
  EXPECT_EQ(counts.kernels, 5000u);
  EXPECT_EQ(timeline.work.size(), counts.kernels);
  EXPECT_EQ(timeline.calls.size(), counts.calls);
  EXPECT_EQ(timeline.ranges.size(), counts.operations + counts.annotations);
  EXPECT_EQ(timeline.names(), 60u + 40u + 1u + counts.annotations) << "of Python's functions no name is kept";
  EXPECT_EQ(timeline.device_name, "Synthetic GPU");
  EXPECT_THAT(timeline.notes, IsEmpty());
}

#if PIANOLA_WITH_ZLIB

// Made by torch.profiler of torch 2.11; the counts are what Python's json module finds in it.
TEST(ChromeTraceFileTest, OfFiveTrainingStepsOnTheCpuHasWhatTorchRecorded) {
  const Timeline timeline = read_chrome_trace(std::filesystem::path(PIANOLA_TEST_DATA) / "profile" / "mlp_cpu.json.gz");
  std::map<HostRange::Kind, int> kinds;
  std::map<std::string, int> ranges, work;
  for (const HostRange& range : timeline.ranges) {
    ++kinds[range.kind];
    ++ranges[timeline.name(range.name)];
  }
  for (const DeviceWork& one : timeline.work) ++work[timeline.name(one.name)];
  EXPECT_EQ(kinds[HostRange::Kind::annotation], 26);
  EXPECT_EQ(kinds[HostRange::Kind::operation], 1334);
  EXPECT_EQ(kinds[HostRange::Kind::backward], 50);
  EXPECT_EQ(kinds[HostRange::Kind::module], 25);
  EXPECT_EQ(ranges["train_step"], 5);
  EXPECT_EQ(ranges["Optimizer.step#AdamW.step"], 5);
  EXPECT_EQ(ranges["enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"], 6);
  EXPECT_EQ(ranges["nn.Module: Mlp_0"], 5);
  EXPECT_EQ(ranges["nn.Module: Linear_1"], 5);
  EXPECT_THAT(timeline.calls, IsEmpty());
  EXPECT_EQ(timeline.work.size(), 428u);
  EXPECT_EQ(work["aten::lerp_"], 20) << "AdamW of four parameters, five times";
  EXPECT_EQ(work["aten::mm"], 15);
  EXPECT_EQ(work.count("aten::as_strided"), 0u) << "it only runs inside other operations";
  EXPECT_THAT(timeline.work, Each(::testing::Field(&DeviceWork::device, -1)));
  EXPECT_THAT(timeline.notes, IsEmpty());
}

#endif

}  // namespace
}  // namespace pianola::chrome_trace_test

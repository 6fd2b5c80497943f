#include <pianola/profile/show/chrome_writer.hpp>

#include <pianola/core/error.hpp>
#include <pianola/profile/read/chrome_trace.hpp>
#include <pianola/profile/testing/timeline_fields.hpp>
#include <pianola/profile/testing/trace_file.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace pianola::chrome_writer_test {
namespace {

using nlohmann::json;
using profiling::TraceFile;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;
using ::testing::UnorderedElementsAre;

constexpr Nanoseconds kStart = 1'795'000'000'000'000'003;  // Since 1970, as CUPTI counts.

/// One process that launches a kernel, copies, and launches a graph of three nodes, two of which run side by side.
struct Step {
  Timeline timeline;

  Step() {
    timeline.device_name = "NVIDIA H200";
    timeline.unrecorded = 90'000;
    timeline.devices = {{.device = 0, .total = 1024}, {.device = 1, .total = 2048}};
    timeline.devices[1].left = memory::FreeMemory{.of_driver = 700, .cached = 60, .returnable = 5};
    range("train \"step\"\n", HostRange::Kind::annotation, 0, 100'000);
    range("nn.Module: Linear_3", HostRange::Kind::module, 1'000, 30'000);
    range("aten::addmm", HostRange::Kind::operation, 2'000, 20'000);
    range("autograd::engine::evaluate_function: AddmmBackward0", HostRange::Kind::backward, 31'000, 35'000);
    range("encoder", HostRange::Kind::module, 36'000, 37'000);
    range("AddmmBackward0, seq = 5", HostRange::Kind::backward, 37'000, 38'000);
    call("cudaLaunchKernel_v7000", HostCall::Kind::launch, 3'000, 7'001, 1);
    call("cuMemcpyDtoHAsync_v2", HostCall::Kind::copy, 8'000, 9'000, 2);
    call("cudaGraphLaunch", HostCall::Kind::graph_launch, 40'000, 49'000, 3);
    call("cudaStreamSynchronize", HostCall::Kind::synchronize, 50'000, 90'000, 0);
    work("gemm<float, 4>", DeviceWork::Kind::kernel, 10'000, 14'000, 1);
    work("Memcpy DtoH", DeviceWork::Kind::copy, 15'000, 16'000, 2).bytes = 4096;
    work("Memset", DeviceWork::Kind::memset, 17'000, 17'500, 0).bytes = 16;
    work("node a", DeviceWork::Kind::kernel, 50'000, 60'000, 3).graph = 12;
    work("node b", DeviceWork::Kind::kernel, 55'000, 80'000, 3).graph = 12;
    work("node c", DeviceWork::Kind::kernel, 80'000, 85'000, 3).graph = 12;
    memory(5'000, 512, 0);
    memory(6'000, 64, -1);
    memory(45'000, -512, 0);
    timeline.sort();
  }

  void memory(Nanoseconds time, std::int64_t bytes, std::int32_t device) {
    timeline.memory.push_back({.time = kStart + time,
                               .address = 139'637'976'727'552,
                               .bytes = bytes,
                               .allocated = static_cast<std::uint64_t>(1000 + bytes),
                               .reserved = 4096,
                               .device = device,
                               .thread = 43});
  }

  static TimeSpan at(Nanoseconds begin, Nanoseconds end) { return {kStart + begin, kStart + end}; }

  void range(const char* name, HostRange::Kind kind, Nanoseconds begin, Nanoseconds end) {
    timeline.ranges.push_back({.time = at(begin, end), .name = timeline.intern(name), .kind = kind, .thread = 43});
  }
  void call(const char* name, HostCall::Kind kind, Nanoseconds begin, Nanoseconds end, std::uint64_t correlation) {
    timeline.calls.push_back({.time = at(begin, end),
                              .name = timeline.intern(name),
                              .kind = kind,
                              .thread = 43,
                              .correlation = correlation});
  }
  DeviceWork& work(const char* name, DeviceWork::Kind kind, Nanoseconds begin, Nanoseconds end,
                   std::uint64_t correlation) {
    return timeline.work.emplace_back(DeviceWork{
        .time = at(begin, end), .name = timeline.intern(name), .kind = kind, .stream = 7, .correlation = correlation});
  }

  /// An iteration with a gap of each of two causes.
  [[nodiscard]] Analysis analysis() const {
    Analysis analysis;
    analysis.iterations.push_back({.time = at(0, 100'000), .busy = 40'500, .kernels = 4, .launches = 3});
    analysis.iterations.back().graph_launches = 1;
    analysis.iterations.back().synchronizations = 1;
    analysis.gaps.push_back({.time = at(0, 10'000), .cause = GapCause::launch, .next = 0, .culprit = {}});
    analysis.gaps.push_back({.time = at(17'500, 50'000), .cause = GapCause::synchronization, .next = 3, .culprit = 3});
    return analysis;
  }
};

void expect_same(const Timeline& read, const Timeline& written) {
  profiling::expect_same_events(read, written);
  EXPECT_EQ(read.device_name, written.device_name);
  ASSERT_EQ(read.devices.size(), written.devices.size());
  for (std::size_t i = 0; i < read.devices.size(); ++i) {
    EXPECT_EQ(read.devices[i].device, written.devices[i].device);
    EXPECT_EQ(read.devices[i].total, written.devices[i].total);
    ASSERT_EQ(read.devices[i].left.has_value(), written.devices[i].left.has_value());
    if (!read.devices[i].left) continue;
    EXPECT_EQ(read.devices[i].left->of_driver, written.devices[i].left->of_driver);
    EXPECT_EQ(read.devices[i].left->cached, written.devices[i].left->cached);
    EXPECT_EQ(read.devices[i].left->returnable, written.devices[i].left->returnable);
  }
  EXPECT_EQ(read.unrecorded, written.unrecorded);
  EXPECT_THAT(read.notes, IsEmpty());
}

Timeline read_back(const Timeline& timeline, const Analysis& analysis = {}) {
  const TraceFile file;
  write_chrome_trace(timeline, analysis, file.path());
  return read_chrome_trace(file.path());
}

json written(const Timeline& timeline, const Analysis& analysis = {}) {
  const TraceFile file;
  write_chrome_trace(timeline, analysis, file.path());
  std::ifstream stream(file.path());
  return json::parse(stream);
}

std::vector<json> events_of(const json& trace, const std::string& field, const std::string& value) {
  std::vector<json> events;
  for (const json& event : trace.at("traceEvents")) {
    if (event.value(field, "") == value) events.push_back(event);
  }
  return events;
}

/// What a viewer writes at the row of an event: "device 0, process 0 / stream 7".
std::string row_of(const json& trace, const json& event) {
  std::string process, thread;
  for (const json& name : events_of(trace, "ph", "M")) {
    if (name.at("pid") != event.at("pid")) continue;
    if (name.at("name") == "process_name") process = name.at("args").at("name");
    if (name.at("name") == "thread_name" && name.at("tid") == event.at("tid")) thread = name.at("args").at("name");
  }
  return process + " / " + thread;
}

TEST(ChromeWriterTest, WritesWhatIsReadBackTheSame) {
  const Step step;
  ASSERT_EQ(step.timeline.work.size(), 6u);
  expect_same(read_back(step.timeline, step.analysis()), step.timeline);
  expect_same(read_back(step.timeline), step.timeline);
}

TEST(ChromeWriterTest, KeepsProcessesDevicesAndThreadsApart) {
  Step step;
  for (const std::int32_t process : {1, 2}) {
    for (std::size_t i = 0; i < 6; ++i) {
      DeviceWork work = step.timeline.work[i];
      work.process = process;
      work.device = static_cast<std::int32_t>(i % 2);
      work.time = {work.time.begin + process, work.time.end + process};
      step.timeline.work.push_back(work);
    }
    HostCall call = step.timeline.calls[0];
    call.process = process;
    call.thread = 1'000'000'000'000 + process;
    call.time.begin += process;
    step.timeline.calls.push_back(call);
    MemoryEvent event = step.timeline.memory[0];
    event.process = process;
    event.device = process;
    step.timeline.memory.push_back(event);
  }
  step.timeline.sort();
  expect_same(read_back(step.timeline, step.analysis()), step.timeline);
}

TEST(ChromeWriterTest, WritesMoreThanItHoldsAtATime) {
  Step step;
  for (int i = 0; i < 5000; ++i) {
    step.work("tiny", DeviceWork::Kind::kernel, 200'000 + 10 * i, 200'005 + 10 * i, 0);
  }
  const TraceFile file;
  write_chrome_trace(step.timeline, {}, file.path());
  EXPECT_GT(std::filesystem::file_size(file.path()), 500'000u);
  expect_same(read_chrome_trace(file.path()), step.timeline);
}

TEST(ChromeWriterTest, WritesAProfileOfTheCpu) {
  Timeline timeline;
  const NameId add = timeline.intern("aten::add");
  timeline.ranges.push_back({.time = {10, 30}, .name = add, .kind = HostRange::Kind::operation, .thread = 5});
  timeline.work.push_back(
      {.time = {10, 30}, .name = add, .kind = DeviceWork::Kind::operation, .device = -1, .stream = 5});
  timeline.work.push_back({.time = {40, 50},
                           .name = timeline.intern("without a range"),
                           .kind = DeviceWork::Kind::operation,
                           .device = -1,
                           .stream = 5});
  expect_same(read_back(timeline), timeline);
}

TEST(ChromeWriterTest, NamesRowsAfterThreadsAndStreams) {
  const json trace = written(Step().timeline);
  EXPECT_EQ(row_of(trace, events_of(trace, "name", "gemm<float, 4>").at(0)), "device 0, process 0 / stream 7");
  EXPECT_EQ(row_of(trace, events_of(trace, "name", "aten::addmm").at(0)), "host, process 0 / thread 43");
  EXPECT_EQ(row_of(trace, events_of(trace, "name", "cudaGraphLaunch").at(0)), "host, process 0 / thread 43");
}

TEST(ChromeWriterTest, ShowsWorkThatOverlapsOnRowsOfItsOwn) {
  const json trace = written(Step().timeline);
  const auto row = [&](const char* name) { return row_of(trace, events_of(trace, "name", name).at(0)); };
  EXPECT_EQ(row("node a"), "device 0, process 0 / stream 7");
  EXPECT_EQ(row("node b"), "device 0, process 0 / stream 7 (2)");
  EXPECT_EQ(row("node c"), "device 0, process 0 / stream 7");
}

TEST(ChromeWriterTest, ShowsALaunchOfAGraphAroundItsNodes) {
  const json trace = written(Step().timeline);
  const std::vector<json> launches = events_of(trace, "cat", "graph_launch");
  ASSERT_EQ(launches.size(), 1u);
  EXPECT_EQ(launches[0].at("name"), "graph 12");
  EXPECT_EQ(launches[0].at("ts"), 50.0) << "microseconds after the first event";
  EXPECT_EQ(launches[0].at("dur"), 35.0);
  EXPECT_EQ(launches[0].at("args"), (json{{"graph id", 12}, {"correlation", 3}, {"nodes", 3}}));
  EXPECT_EQ(row_of(trace, launches[0]), "device 0, process 0 / graph launches");
  EXPECT_EQ(events_of(trace, "name", "node b").at(0).at("args").at("graph id"), 12);
  EXPECT_EQ(events_of(trace, "name", "node b").at(0).at("args").at("correlation"), 3);
}

TEST(ChromeWriterTest, DrawsAnArrowFromEachCallToEachPieceOfItsWork) {
  const json trace = written(Step().timeline);
  std::map<int, json> from;
  for (const json& start : events_of(trace, "ph", "s")) from[start.at("id")] = start;
  std::vector<std::pair<double, double>> arrows;
  std::set<int> ids;
  for (const json& end : events_of(trace, "ph", "f")) {
    const json& start = from.at(end.at("id"));
    ids.insert(end.at("id").get<int>());
    EXPECT_EQ(row_of(trace, start), "host, process 0 / thread 43");
    EXPECT_THAT(row_of(trace, end), HasSubstr("device 0, process 0 / stream 7"));
    arrows.emplace_back(start.at("ts"), end.at("ts"));
  }
  EXPECT_THAT(arrows, UnorderedElementsAre(std::pair(3.0, 10.0), std::pair(8.0, 15.0), std::pair(40.0, 50.0),
                                           std::pair(40.0, 55.0), std::pair(40.0, 80.0)));
  EXPECT_EQ(ids.size(), 5u) << "viewers take one end for each id";
}

TEST(ChromeWriterTest, ShowsIterationsAndGapsByTheirCauseOnRowsOfTheirOwn) {
  const Step step;
  const json trace = written(step.timeline, step.analysis());
  const std::vector<json> iterations = events_of(trace, "cat", "iteration");
  ASSERT_EQ(iterations.size(), 1u);
  EXPECT_EQ(iterations[0].at("name"), "iteration 0");
  EXPECT_EQ(iterations[0].at("dur"), 100.0);
  EXPECT_EQ(iterations[0].at("args"),
            (json{{"busy_us", 40.5}, {"kernels", 4}, {"launches", 3}, {"graph launches", 1}, {"synchronizations", 1}}));
  EXPECT_EQ(row_of(trace, iterations[0]), "device 0, process 0 / iterations");
  const std::vector<json> gaps = events_of(trace, "cat", "gap");
  ASSERT_EQ(gaps.size(), 2u);
  EXPECT_EQ(gaps[0].at("name"), "launch");
  EXPECT_EQ(gaps[0].at("args"), (json{{"next", "gemm<float, 4>"}}));
  EXPECT_EQ(gaps[1].at("name"), "synchronization");
  EXPECT_EQ(gaps[1].at("ts"), 17.5);
  EXPECT_EQ(gaps[1].at("dur"), 32.5);
  EXPECT_EQ(gaps[1].at("args"), (json{{"next", "node a"}, {"waited in", "cudaStreamSynchronize"}}));
  EXPECT_EQ(row_of(trace, gaps[1]), "device 0, process 0 / gaps");
}

TEST(ChromeWriterTest, ShowsWhatIsAllocatedAsACurveForEachDevice) {
  const json trace = written(Step().timeline);
  std::vector<std::tuple<std::string, double, int>> curve;
  for (const json& point : events_of(trace, "ph", "C")) {
    curve.emplace_back(point.at("name"), point.at("ts"), point.at("args").at("bytes"));
    EXPECT_EQ(point.at("pid"), events_of(trace, "name", "cudaGraphLaunch").at(0).at("pid"));
  }
  EXPECT_THAT(curve, ::testing::ElementsAre(std::tuple("allocated on device 0", 5.0, 1512),
                                            std::tuple("allocated on the CPU", 6.0, 1064),
                                            std::tuple("allocated on device 0", 45.0, 488)));
}

TEST(ChromeWriterTest, ShowsWhatTheAllocatorDidOnTheThreadThatAskedForIt) {
  const json trace = written(Step().timeline);
  const std::vector<json> events = events_of(trace, "name", "[memory]");
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(row_of(trace, events[0]), "host, process 0 / thread 43");
  EXPECT_EQ(events[0].at("ph"), "i");
  EXPECT_EQ(events[0].at("args").at("Bytes"), 512);
  EXPECT_EQ(events[1].at("args").at("Device Id"), -1);
}

TEST(ChromeWriterTest, WritesTimesThatViewersHoldInADouble) {
  const Step step;
  const json trace = written(step.timeline);
  EXPECT_EQ(trace.at("baseTimeNanoseconds"), kStart);
  EXPECT_EQ(events_of(trace, "name", "cudaLaunchKernel_v7000").at(0).at("dur"), 4.001);
  for (const json& event : events_of(trace, "ph", "X")) EXPECT_LT(event.at("ts").get<double>(), 101);
}

TEST(ChromeWriterTest, NamesThatAreNoUtf8StillMakeJson) {
  Timeline timeline;
  timeline.ranges.push_back({.time = {0, 1},
                             .name = timeline.intern("a\xff"
                                                     "b")});
  EXPECT_EQ(events_of(written(timeline), "cat", "user_annotation").at(0).at("name"),
            "a\xef\xbf\xbd"
            "b");
}

TEST(ChromeWriterTest, AnEmptyTimelineIsATraceWithoutEvents) { EXPECT_THAT(written({}).at("traceEvents"), IsEmpty()); }

TEST(ChromeWriterTest, CompressesWhereTheNameSaysSo) {
  const std::filesystem::path plain = std::filesystem::path(::testing::TempDir()) / "pianola_written.json";
  const std::filesystem::path compressed = std::filesystem::path(::testing::TempDir()) / "pianola_written.json.gz";
  const Step step;
#if PIANOLA_WITH_ZLIB
  write_chrome_trace(step.timeline, {}, plain);
  write_chrome_trace(step.timeline, {}, compressed);
  EXPECT_LT(std::filesystem::file_size(compressed), std::filesystem::file_size(plain) / 2);
  expect_same(read_chrome_trace(compressed), read_chrome_trace(plain));
  std::filesystem::remove(plain);
  std::filesystem::remove(compressed);
#else
  EXPECT_THAT([&] { write_chrome_trace(step.timeline, {}, compressed); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("is to be compressed with gzip, and this build has no zlib"),
                                              HasSubstr("leave the .gz out"))));
#endif
}

TEST(ChromeWriterTest, RefusesAFolderThatIsNotThere) {
  const std::filesystem::path file = std::filesystem::path(::testing::TempDir()) / "no such folder" / "trace.json";
  EXPECT_THAT(
      [&] { write_chrome_trace(Step().timeline, {}, file); },
      ThrowsMessage<UsageError>(AllOf(HasSubstr("the trace '" + file.string() + "' cannot be written: "),
                                      HasSubstr("No such file or directory"), HasSubstr("folder that exists"))));
}

TEST(ChromeWriterTest, SaysThatThereIsNoRoom) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "needs /dev/full";
  EXPECT_THAT([] { write_chrome_trace(Step().timeline, {}, "/dev/full"); },
              ThrowsMessage<UsageError>(HasSubstr("cannot be written: No space left on device")));
}

}  // namespace
}  // namespace pianola::chrome_writer_test

#include <pianola/profile/record/activity_recorder.hpp>

#include <pianola/cuda/cupti_library.hpp>
#include <pianola/profile/read/recording.hpp>
#include <pianola/profile/record/recorded_calls.hpp>
#include <pianola/profile/testing/fake_activity.hpp>
#include <pianola/profile/testing/temporary_folder.hpp>

#include <cupti_driver_cbid.h>
#include <cupti_runtime_cbid.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

namespace pianola::profiling::activity_recorder_test {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

class ActivityRecorderTest : public ::testing::Test {
 protected:
  // Asks for a flush only at the end, unless a test wants it otherwise.
  RecorderOptions options(milliseconds period = std::chrono::hours(1)) const {
    return {
        .path = path, .max_bytes = 50'000'000, .buffers = {.bytes = 4096, .most = 4, .at_once = 2}, .period = period};
  }
  std::unique_ptr<ActivityRecorder> start(const RecorderOptions& given) {
    ActivityRecorder::Opening opening = ActivityRecorder::start(fake.table, given);
    EXPECT_EQ(opening.problem.what, "");
    return std::move(opening.recorder);
  }
  std::unique_ptr<ActivityRecorder> start() { return start(options()); }
  template <class Condition>
  bool eventually(Condition holds) {
    for (int i = 0; i < 2000 && !holds(); ++i) std::this_thread::sleep_for(milliseconds(5));
    return holds();
  }

  TemporaryFolder folder;
  const std::string path = folder / "1.pianola";
  FakeActivity fake;
};

std::size_t watched_calls() {
  const RecordedCalls calls(FakeActivity::names());
  return static_cast<std::size_t>(std::ranges::count_if(calls.all(), &is_watched));
}

TEST_F(ActivityRecorderTest, RecordsKernelsCallsAndRanges) {
  RecorderOptions given = options();
  given.ranges = true;
  const auto recorder = start(given);
  fake.put(call_record(true, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, 1'000'100, 1'000'105, 11));
  fake.put(kernel_record("gemm", 1'000'120, 1'000'190, 11));
  fake.put(marker_record(CUPTI_ACTIVITY_FLAG_MARKER_START, 1, 1'000'050, "step"));
  fake.put(marker_record(CUPTI_ACTIVITY_FLAG_MARKER_END, 1, 1'000'200, nullptr));
  EXPECT_EQ(recorder->stop(), "");
  const Timeline timeline = read_recording(path);
  EXPECT_THAT(timeline.notes, IsEmpty());
  EXPECT_EQ(timeline.source, "recording of process " + std::to_string(getpid()));
  ASSERT_EQ(timeline.work.size(), 1U);
  EXPECT_EQ(timeline.work[0].time, (TimeSpan{70, 140}));
  ASSERT_EQ(timeline.calls.size(), 1U);
  EXPECT_EQ(timeline.calls[0].correlation, timeline.work[0].correlation);
  ASSERT_EQ(timeline.ranges.size(), 1U);
  EXPECT_EQ(timeline.ranges[0].time, (TimeSpan{0, 150}));
}

TEST_F(ActivityRecorderTest, EnablesTheCheapKindsAndTheCallsOfTheTableAlone) {
  const auto recorder = start();
  EXPECT_TRUE(fake.subscribed);
  EXPECT_THAT(fake.enabled, ::testing::UnorderedElementsAre(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                                            CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMCPY2,
                                                            CUPTI_ACTIVITY_KIND_MEMSET, CUPTI_ACTIVITY_KIND_DEVICE));
  EXPECT_EQ(fake.runtime_calls.size() + fake.driver_calls.size(), watched_calls());
  EXPECT_FALSE(fake.runtime_calls.contains(CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000))
      << "the driver's is watched";
  EXPECT_TRUE(fake.driver_calls.contains(CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel));
  EXPECT_EQ(fake.zeroed, 1);
  EXPECT_EQ(fake.thread_ids, CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM);
  recorder->stop();
  EXPECT_FALSE(fake.subscribed);
  EXPECT_THAT(fake.enabled, IsEmpty());
  EXPECT_THAT(fake.runtime_calls, IsEmpty());
  EXPECT_THAT(fake.driver_calls, IsEmpty());
  EXPECT_THAT(fake.flushes, ElementsAre(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED)) << "all, complete or not, and once";
}

TEST_F(ActivityRecorderTest, EnablesRangesIfAsked) {
  RecorderOptions given = options();
  given.ranges = true;
  const auto recorder = start(given);
  EXPECT_THAT(fake.enabled, Contains(CUPTI_ACTIVITY_KIND_MARKER));
  recorder->stop();
  EXPECT_THAT(fake.enabled, IsEmpty());
}

TEST_F(ActivityRecorderTest, CanBeginAgain) {
  for (std::uint32_t round = 1; round <= 3; ++round) {
    const auto recorder = start();
    for (std::uint32_t i = 0; i < round; ++i)
      fake.put(kernel_record("gemm", 2'000'000 + 10 * i, 2'000'005 + 10 * i, i));
    EXPECT_EQ(recorder->stop(), "");
    EXPECT_EQ(recorder->stop(), "") << "and nothing happens the second time";
    EXPECT_EQ(read_recording(path).work.size(), round);
  }
}

TEST_F(ActivityRecorderTest, AtTheEndOfTheProcessCuptiIsLeftAsItIs) {
  const auto recorder = start();
  fake.put(kernel_record("gemm", 2'000'000, 2'000'005, 1));
  EXPECT_EQ(recorder->stop_at_exit(), "");
  EXPECT_TRUE(fake.subscribed);
  EXPECT_THAT(fake.enabled, Contains(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL));
  for (std::uint32_t i = 0; i < 2000; ++i) fake.put(kernel_record("late", 3'000'000 + 10 * i, 3'000'005 + 10 * i, i));
  EXPECT_EQ(read_recording(path).work.size(), 1U);
  EXPECT_THAT(read_recording(path).notes, IsEmpty());
}

TEST_F(ActivityRecorderTest, FlushesNowAndThenSoThatACrashLosesLittle) {
  const auto recorder = start(options(milliseconds(5)));
  fake.put(kernel_record("gemm", 2'000'000, 2'000'005, 1));
  ASSERT_TRUE(eventually([&] { return read_recording(path).work.size() == 1; }));
  EXPECT_THAT(read_recording(path).notes, ElementsAre(HasSubstr("the process ended before the recording did")));
  const std::lock_guard lock(fake.mutex());
  EXPECT_EQ(std::count(fake.flushes.begin(), fake.flushes.end(), 0U), static_cast<long>(fake.flushes.size()))
      << "none that takes what is not complete";
}

TEST_F(ActivityRecorderTest, WhatComesBeforeTheDelayIsOverIsNotRecorded) {
  RecorderOptions given = options();
  given.delay = milliseconds(200);
  const auto recorder = start(given);
  fake.put(kernel_record("early", 2'000'000, 2'000'005, 1));
  ASSERT_TRUE(eventually([&] { return fake.records(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL); }));
  fake.put(kernel_record("late", 3'000'000, 3'000'005, 2));
  EXPECT_EQ(recorder->stop(), "");
  const Timeline timeline = read_recording(path);
  ASSERT_EQ(timeline.work.size(), 1U);
  EXPECT_EQ(timeline.name(timeline.work[0].name), "late");
}

// CUPTI records no call that it was not asked for before the program began to use CUDA, and tells of devices then.
TEST_F(ActivityRecorderTest, CallsAreAskedForBeforeTheDelayAndThoseWithinItDropped) {
  RecorderOptions given = options();
  given.delay = milliseconds(200);
  const auto recorder = start(given);
  {
    const std::lock_guard lock(fake.mutex());
    EXPECT_EQ(fake.runtime_calls.size() + fake.driver_calls.size(), watched_calls());
    EXPECT_THAT(fake.enabled, ElementsAre(CUPTI_ACTIVITY_KIND_DEVICE));
    fake.clock = 2'000'000;  // at which the delay is over
  }
  fake.put(call_record(true, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, 1'999'900, 1'999'990, 1));
  ASSERT_TRUE(eventually([&] { return fake.records(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL); }));
  fake.put(call_record(true, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, 2'000'100, 2'000'110, 2));
  EXPECT_EQ(recorder->stop(), "");
  const Timeline timeline = read_recording(path);
  ASSERT_EQ(timeline.calls.size(), 1U);
  EXPECT_EQ(timeline.calls[0].time.duration(), 10);
  EXPECT_THAT(fake.enabled, IsEmpty());
}

TEST_F(ActivityRecorderTest, AProgramThatEndsBeforeTheDelayIsOverIsNotHeldUp) {
  RecorderOptions given = options();
  given.delay = std::chrono::hours(1);
  const auto recorder = start(given);
  EXPECT_EQ(recorder->stop(), "");
  EXPECT_TRUE(read_recording(path).work.empty());
}

TEST_F(ActivityRecorderTest, AfterItsDurationNothingIsRecordedAnyMore) {
  RecorderOptions given = options(milliseconds(5));
  given.duration = milliseconds(100);
  const auto recorder = start(given);
  fake.put(kernel_record("within", 2'000'000, 2'000'005, 1));
  ASSERT_TRUE(eventually([&] { return !fake.records(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL); }));
  fake.put(kernel_record("after", 3'000'000, 3'000'005, 2));
  EXPECT_EQ(recorder->stop(), "");
  const Timeline timeline = read_recording(path);
  ASSERT_EQ(timeline.work.size(), 1U);
  EXPECT_EQ(timeline.name(timeline.work[0].name), "within");
  EXPECT_THAT(timeline.notes, IsEmpty());
}

TEST_F(ActivityRecorderTest, WhatIsRefusedAfterTheDelayIsTheOutcome) {
  RecorderOptions given = options();
  given.delay = milliseconds(200);
  const auto recorder = start(given);
  fake.refuse(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ERROR_INSUFFICIENT_PRIVILEGES);
  ASSERT_TRUE(eventually([&] { return fake.refusals == 1; }));
  EXPECT_THAT(recorder->stop(), HasSubstr("profiling is not allowed to this user"));
}

TEST_F(ActivityRecorderTest, RecordsThatFindNoBufferAreCounted) {
  RecorderOptions given = options();
  given.buffers = {.bytes = 2 * sizeof(CUpti_ActivityKernel10), .most = 1, .at_once = 1};
  const auto recorder = start(given);
  fake.holds_reading = true;  // the only buffer, with its two records, stays in use
  for (std::uint32_t i = 0; i < 2000; ++i) fake.put(kernel_record("gemm", 2'000'000 + 10 * i, 2'000'005 + 10 * i, i));
  fake.holds_reading = false;
  EXPECT_EQ(recorder->stop(), "");
  const Timeline timeline = read_recording(path);
  EXPECT_EQ(timeline.work.size(), 2U);
  EXPECT_THAT(timeline.notes, ElementsAre("1998 records were dropped: they came faster than they could be written"));
}

TEST_F(ActivityRecorderTest, ManyThreadsManyRecordsAndBoundedBuffers) {
  RecorderOptions given = options(milliseconds(1));
  given.buffers = {.bytes = 64 * 1024, .most = 8, .at_once = 2};
  const auto recorder = start(given);
  std::vector<std::thread> threads;
  for (std::uint32_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([this, thread] {
      for (std::uint32_t i = 0; i < 20'000; ++i) {
        fake.put(kernel_record("gemm", 2'000'000 + 10 * i, 2'000'005 + 10 * i, thread * 100'000 + i));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(recorder->stop(), "");
  const Timeline timeline = read_recording(path);
  std::size_t dropped = 0;
  for (const std::string& note : timeline.notes) dropped += std::stoul(note);
  EXPECT_EQ(timeline.work.size() + dropped, 80'000U);
}

TEST_F(ActivityRecorderTest, AFullFileTurnsRecordingOff) {
  RecorderOptions given = options(milliseconds(5));
  given.max_bytes = 300'000;
  given.buffers = {.bytes = 64 * 1024, .most = 8, .at_once = 2};
  const auto recorder = start(given);
  std::uint32_t made = 0;
  ASSERT_TRUE(eventually([&] {
    for (int i = 0; i < 1000; ++i, ++made)
      fake.put(kernel_record("gemm", 2'000'000 + 10 * made, 2'000'005 + 10 * made, made));
    const std::lock_guard lock(fake.mutex());
    return fake.enabled.empty();
  })) << "what CUPTI need not record costs nothing";
  EXPECT_EQ(recorder->stop(), "");
  EXPECT_LE(contents(path).size(), 300'000U);
  const Timeline timeline = read_recording(path);
  EXPECT_THAT(timeline.notes, Contains(HasSubstr("reached its limit of 0.3 MB")));
  EXPECT_THAT(timeline.notes, ::testing::Not(Contains(HasSubstr("ended before"))));
}

TEST_F(ActivityRecorderTest, AHangingDriverDoesNotKeepTheProgramFromEnding) {
  RecorderOptions given = options();
  given.patience = milliseconds(50);
  fake.holds_flushes = true;
  {
    const auto recorder = start(given);
    EXPECT_EQ(recorder->stop(), "the last records did not come within 0.05 s");
  }
  fake.holds_flushes = false;
  // The thread, which is on its own now, comes to its end.
  EXPECT_TRUE(eventually([&] { return read_recording(path).notes.empty(); }));
}

TEST_F(ActivityRecorderTest, AKilledProgramLeavesAReadableRecording) {
  const pid_t child = fork();
  if (child == 0) {
    RecorderOptions given = options(milliseconds(5));
    given.buffers = {};
    ActivityRecorder::Opening opening = ActivityRecorder::start(fake.table, given);
    for (std::uint32_t i = 0; i < 100; ++i) fake.put(kernel_record("gemm", 2'000'000 + 10 * i, 2'000'005 + 10 * i, i));
    for (int i = 0; i < 2000 && read_recording(path).work.size() < 100; ++i)
      std::this_thread::sleep_for(milliseconds(5));
    kill(getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  const Timeline timeline = read_recording(path);
  EXPECT_EQ(timeline.work.size(), 100U);
  EXPECT_THAT(timeline.notes, ElementsAre(HasSubstr("the process ended before the recording did")));
}

TEST_F(ActivityRecorderTest, AnotherProfilerIsTheReason) {
  fake.subscribed = true;
  const auto opening = ActivityRecorder::start(fake.table, options());
  EXPECT_EQ(opening.recorder, nullptr);
  EXPECT_EQ(opening.problem.what,
            "another profiler is attached to this process, and CUPTI serves only one (CUPTI_ERROR_OF_A_TEST)");
  EXPECT_THAT(opening.problem.fix, AllOf(HasSubstr("Nsight Systems"), HasSubstr("torch.profiler")));
  EXPECT_TRUE(fake.subscribed) << "its subscription is left alone";
  EXPECT_EQ(contents(path), "") << "and no recording begun";
}

TEST_F(ActivityRecorderTest, MissingPermissionIsTheReason) {
  fake.enable_results[CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL] = CUPTI_ERROR_INSUFFICIENT_PRIVILEGES;
  const auto opening = ActivityRecorder::start(fake.table, options());
  EXPECT_EQ(opening.recorder, nullptr);
  EXPECT_THAT(opening.problem.what, StartsWith("profiling is not allowed to this user"));
  EXPECT_THAT(opening.problem.fix, HasSubstr("NVreg_RestrictProfilingToAdminUsers=0"));
  EXPECT_FALSE(fake.subscribed) << "CUPTI is as it was";
  EXPECT_THAT(fake.enabled, IsEmpty());
  EXPECT_NE(access(path.c_str(), F_OK), 0) << "and no recording is left that looks like an empty one";
}

TEST_F(ActivityRecorderTest, APartitionedDeviceIsTheReason) {
  fake.enable_results[CUPTI_ACTIVITY_KIND_MEMCPY] = CUPTI_ERROR_MIG_DEVICE_NOT_SUPPORTED;
  const auto opening = ActivityRecorder::start(fake.table, options());
  EXPECT_EQ(opening.problem.what, "CUPTI refused cuptiActivityEnable (CUPTI_ERROR_OF_A_TEST)");
  EXPECT_THAT(opening.problem.fix, HasSubstr("neither virtual, partitioned"));
}

TEST_F(ActivityRecorderTest, KindsThatAreOnlyWelcomeMayBeMissing) {
  fake.enable_results[CUPTI_ACTIVITY_KIND_MARKER] = CUPTI_ERROR_NOT_COMPATIBLE;
  const auto recorder = start();
  ASSERT_NE(recorder, nullptr);
  EXPECT_EQ(fake.enabled.count(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL), 1U);
}

TEST_F(ActivityRecorderTest, AnOldCuptiIsRefused) {
  fake.version = 28;
  const auto old = ActivityRecorder::start(fake.table, options());
  EXPECT_EQ(old.problem.what,
            "the CUPTI library of this process is version 28 (before CUDA 13), the recorder reads 13.0.0 on");
  EXPECT_THAT(old.problem.fix, HasSubstr("install CUPTI of CUDA 13"));
  EXPECT_FALSE(fake.subscribed);
  fake.version = CUPTI_API_VERSION + 100;
  EXPECT_NE(ActivityRecorder::start(fake.table, options()).recorder, nullptr) << "a later one appends fields";
}

TEST_F(ActivityRecorderTest, AFolderThatCannotBeWrittenIsTheReason) {
  RecorderOptions given = options();
  given.path = folder / "none/1.pianola";
  const auto opening = ActivityRecorder::start(fake.table, given);
  EXPECT_THAT(opening.problem.what, AllOf(HasSubstr("cannot create"), HasSubstr("none/1.pianola")));
  EXPECT_FALSE(fake.subscribed);
}

TEST(ActivityApiTest, ALibraryThatIsMissingOrTooOldIsTheReason) {
  const auto none = activity_api_of(nullptr);
  EXPECT_FALSE(none.api.has_value());
  EXPECT_EQ(none.problem.what, "there is no CUPTI library on this machine");
  const auto other = activity_api_of(dlopen("libc.so.6", RTLD_LAZY));
  EXPECT_FALSE(other.api.has_value());
  EXPECT_EQ(other.problem.what, "the CUPTI library of this process has no cuptiGetVersion: it is too old");
}

// CUPTI itself walks over a buffer without a device: what it finds where must be what the header's structs say.
TEST(ActivityApiTest, TheInstalledCuptiLaysItsRecordsOutAsTheHeaderDoes) {
  const auto opening = open_activity_api("");
  if (!opening.api) GTEST_SKIP() << "no CUPTI: " << opening.problem.what;
  EXPECT_FALSE(check_version(*opening.api).has_value());
#if CUPTI_API_VERSION >= 130200
  GTEST_SKIP() << "where there is no GPU, this CUPTI ends the process when it is asked for a record";
#endif
  alignas(8) std::uint8_t buffer[4096] = {};
  std::size_t used = 0;
  std::vector<std::size_t> places;
  for (const auto kind : {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_RUNTIME,
                          CUPTI_ACTIVITY_KIND_DRIVER, CUPTI_ACTIVITY_KIND_MARKER, CUPTI_ACTIVITY_KIND_MEMCPY,
                          CUPTI_ACTIVITY_KIND_MEMSET, CUPTI_ACTIVITY_KIND_DEVICE, CUPTI_ACTIVITY_KIND_MEMCPY2}) {
    reinterpret_cast<CUpti_Activity*>(buffer + used)->kind = kind;
    places.push_back(used);
    used += FakeActivity::size_of(kind);
  }
  std::vector<std::size_t> found;
  CUpti_Activity* record = nullptr;
  while (opening.api->next_record(buffer, used, &record) == CUPTI_SUCCESS) {
    found.push_back(static_cast<std::size_t>(reinterpret_cast<std::uint8_t*>(record) - buffer));
  }
  EXPECT_EQ(found, places);
}

}  // namespace
}  // namespace pianola::profiling::activity_recorder_test

#include <pianola/profile/record/child.hpp>

#include <pianola/profile/testing/temporary_folder.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

// PIANOLA_TEST_PROFILER, PIANOLA_TEST_CUPTI and PIANOLA_TEST_PROGRAM are what is built beside this test: the library that
// is loaded into programs, a libcupti.so.13 without a GPU, and a program that uses both as one on a GPU would.

namespace pianola::child_test {
namespace {

using profiling::TemporaryFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

class ChildTest : public ::testing::Test {
 protected:
  void SetUp() override {
    unsetenv("PIANOLA_FAKE_CUPTI");
    unsetenv("CUDA_INJECTION64_PATH");
  }
  ChildOptions options() const {
    return {.folder = folder / "run", .library = PIANOLA_TEST_PROFILER, .cupti = PIANOLA_TEST_CUPTI};
  }
  ChildResult run(std::vector<std::string> actions) {
    actions.insert(actions.begin(), PIANOLA_TEST_PROGRAM);
    return run_profiled(actions, options());
  }
  static std::string problem(const ChildResult& result) {
    return result.problem ? result.problem->what + " / " + result.problem->fix : "";
  }
  TemporaryFolder folder;
};

TEST_F(ChildTest, AProgramIsRecordedToItsEnd) {
  const ChildResult result = run({"cuda", "work=1000", "exit=3"});
  EXPECT_EQ(problem(result), "");
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(result.signal, 0);
  EXPECT_EQ(result.timeline.work.size(), 1000U);
  EXPECT_EQ(result.timeline.calls.size(), 1000U);
  EXPECT_THAT(result.timeline.notes, IsEmpty());
  EXPECT_EQ(result.timeline.name(result.timeline.work.at(0).name), "fake_kernel");
}

// As a program of C++ that links libtorch does; the recorder, built with a standard library of its own, once crashed in it.
TEST_F(ChildTest, AProgramMayExportWhatTheRecorderUsesOfTheStandardLibrary) {
  const ChildResult result = run({"promise", "cuda", "work=10", "exit=3"});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(result.signal, 0);
  EXPECT_EQ(result.timeline.work.size(), 10U);
}

TEST_F(ChildTest, ProgramsThatItStartsAreRecordedOnTheSameClock) {
  const ChildResult result = run({"cuda", "work=5", "another"});
  EXPECT_EQ(problem(result), "");
  ASSERT_EQ(result.timeline.work.size(), 8U);
  EXPECT_EQ(result.timeline.work.front().process, 0);
  EXPECT_EQ(result.timeline.work.back().process, 1);
  EXPECT_GT(result.timeline.work.back().time.begin, result.timeline.work.front().time.end);
  EXPECT_LT(result.timeline.extent().duration(), Nanoseconds{60} * 1'000'000'000);
}

TEST_F(ChildTest, ACopyOfTheProcessLeavesItsRecordingAlone) {
  const ChildResult result = run({"cuda", "work=2", "fork", "work=2"});
  EXPECT_EQ(result.timeline.work.size(), 4U);
  EXPECT_THAT(result.timeline.notes, IsEmpty());
}

TEST_F(ChildTest, ACrashedProgramLeavesWhatItDidBefore) {
  const ChildResult result = run({"cuda", "work=10", "pause", "abort"});
  EXPECT_EQ(problem(result), "");
  EXPECT_EQ(result.signal, SIGABRT);
  EXPECT_EQ(result.exit_code, 128 + SIGABRT);
  EXPECT_EQ(result.timeline.work.size(), 10U);
  EXPECT_THAT(result.timeline.notes, ElementsAre(HasSubstr("the process ended before the recording did")));
}

TEST_F(ChildTest, AProgramThatLeavesWithoutGoodbyeIsNoted) {
  const ChildResult result = run({"cuda", "work=10", "pause", "leave"});
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_EQ(result.timeline.work.size(), 10U);
  EXPECT_THAT(result.timeline.notes, ElementsAre(HasSubstr("ended before")));
}

TEST_F(ChildTest, NvtxRangesAreRecordedWhereAskedForWithoutTheCallThatCrashes) {
  ChildOptions given = options();
  given.nvtx = true;
  const ChildResult result = run_profiled({PIANOLA_TEST_PROGRAM, "cuda", "nvtx"}, given);
  EXPECT_EQ(result.signal, 0);
  ASSERT_EQ(result.timeline.ranges.size(), 1U);
  EXPECT_EQ(result.timeline.name(result.timeline.ranges[0].name), "step");
  EXPECT_TRUE(result.timeline.ranges[0].time.contains(result.timeline.work.at(0).time.begin));
}

TEST_F(ChildTest, WithoutNvtxThereAreNoRanges) {
  const ChildResult result = run({"cuda", "nvtx"});
  EXPECT_EQ(result.timeline.work.size(), 1U);
  EXPECT_THAT(result.timeline.ranges, IsEmpty());
}

TEST_F(ChildTest, OfALongProgramAPartIsRecorded) {
  ChildOptions given = options();
  given.delay = std::chrono::milliseconds(1000);
  given.duration = std::chrono::milliseconds(2000);
  const ChildResult result =
      run_profiled({PIANOLA_TEST_PROGRAM, "cuda", "work=3", "pause", "work=5", "pause", "work=7"}, given);
  EXPECT_EQ(problem(result), "");
  EXPECT_EQ(result.timeline.work.size(), 5U) << "of two pauses of 2 s";
}

TEST_F(ChildTest, TheBoundOfTheFileHolds) {
  ChildOptions given = options();
  given.max_bytes = 200'000;
  const ChildResult result = run_profiled({PIANOLA_TEST_PROGRAM, "cuda", "work=200000"}, given);
  EXPECT_GT(result.timeline.work.size(), 100U);
  EXPECT_LT(result.timeline.work.size(), 100'000U);
  EXPECT_THAT(result.timeline.notes, ::testing::Contains(HasSubstr("reached its limit of 0.2 MB")));
}

TEST_F(ChildTest, AProgramThatNeverUsedCudaIsToldSo) {
  const ChildResult result = run_profiled({"/bin/sh", "-c", "exit 4"}, options());
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(problem(result), AllOf(HasSubstr("'/bin/sh' ended with exit code 4 and never used CUDA"),
                                     HasSubstr("torch.cuda.is_available()")));
  EXPECT_THAT(result.timeline.work, IsEmpty());
  const ChildResult killed =
      run_profiled({"sh", "-c", "kill -9 $$"}, {.folder = folder / "second", .library = PIANOLA_TEST_PROFILER});
  EXPECT_EQ(killed.signal, SIGKILL);
  EXPECT_EQ(killed.exit_code, 137);
  EXPECT_THAT(problem(killed), HasSubstr("'sh' was ended by signal 9 (Killed) and never used CUDA"));
}

TEST_F(ChildTest, AProgramWithoutWorkIsToldSo) {
  const ChildResult result = run({"cuda"});
  EXPECT_THAT(problem(result), HasSubstr("used CUDA, but no kernel, copy or memset was recorded"));
}

TEST_F(ChildTest, AnotherProfilerAttachedIsTold) {
  setenv("PIANOLA_FAKE_CUPTI", "busy", 1);
  const ChildResult result = run({"cuda", "work=3", "exit=2"});
  EXPECT_EQ(result.exit_code, 2) << "the program ran all the same";
  EXPECT_THAT(problem(result),
              AllOf(HasSubstr("could not be recorded: another profiler is attached"), HasSubstr("Nsight Systems")));
}

TEST_F(ChildTest, MissingPermissionIsTold) {
  setenv("PIANOLA_FAKE_CUPTI", "forbidden", 1);
  EXPECT_THAT(problem(run({"cuda", "work=3"})), AllOf(HasSubstr("profiling is not allowed to this user"),
                                                      HasSubstr("NVreg_RestrictProfilingToAdminUsers=0")));
}

TEST_F(ChildTest, AnOldCuptiIsTold) {
  setenv("PIANOLA_FAKE_CUPTI", "old", 1);
  EXPECT_THAT(problem(run({"cuda", "work=3"})), HasSubstr("is version 24 (before CUDA 13)"));
}

TEST_F(ChildTest, TheEnvironmentReachesTheCommandAndTheRestOfItStays) {
  setenv("PIANOLA_TEST_KEPT", "a b", 1);
  const std::string file = folder / "environment";
  (void)run_profiled({"sh", "-c",
                      "printf '%s|%s|%s|%s' \"$CUDA_INJECTION64_PATH\" \"$PIANOLA_PROFILE_MAX_BYTES\" "
                      "\"$PIANOLA_TEST_KEPT\" \"$NVTX_INJECTION64_PATH\" > \"$0\"",
                      file},
                     options());
  char* library = realpath(PIANOLA_TEST_PROFILER, nullptr);
  EXPECT_EQ(profiling::contents(file), std::string(library) + "|1073741824|a b|");
  std::free(library);
}

TEST_F(ChildTest, SignalsGoOnToTheCommand) {
  for (const int signal : {SIGTERM, SIGINT}) {
    // What a script starts in the background ignores SIGINT, and a shell traps nothing that it ignored from the beginning.
    const auto before = std::signal(signal, SIG_DFL);
    const std::string ready = folder / ("ready" + std::to_string(signal));
    std::thread sends([&] {
      while (access(ready.c_str(), F_OK) != 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      kill(getpid(), signal);
    });
    const ChildResult result =
        run_profiled({"sh", "-c", "trap 'exit 21' TERM INT; : > \"$0\"; while :; do sleep 0.05; done", ready},
                     {.folder = folder / std::to_string(signal), .library = PIANOLA_TEST_PROFILER});
    sends.join();
    std::signal(signal, before);
    EXPECT_EQ(result.exit_code, 21) << "and this process lives";
  }
}

TEST_F(ChildTest, CommandsThatCannotStartAreRefused) {
  EXPECT_THAT(
      [&] { (void)run_profiled({}, options()); },
      ThrowsMessage<UsageError>(AllOf(HasSubstr("there is no command to profile"), HasSubstr("pianola profile --"))));
  EXPECT_THAT(
      [&] { (void)run_profiled({"no-such-program-here"}, options()); },
      ThrowsMessage<UsageError>(AllOf(HasSubstr("there is no program 'no-such-program-here'"), HasSubstr("its name"))));
  EXPECT_THAT([&] { (void)run_profiled({folder / "none.sh"}, options()); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("there is no program"), HasSubstr("check the path"))));
  profiling::write_file(folder / "train.py", "print(1)");
  EXPECT_THAT([&] { (void)run_profiled({folder / "train.py"}, options()); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("train.py' cannot be executed: Permission denied"),
                                              HasSubstr("python " + folder.path()))));
}

TEST_F(ChildTest, AMissingLibraryIsRefused) {
  ChildOptions given = options();
  given.library = folder / "libpianola_profiler.so";
  EXPECT_THAT(
      [&] { (void)run_profiled({"true"}, given); },
      ThrowsMessage<UsageError>(AllOf(HasSubstr("the recorder's library is not at"), HasSubstr("PIANOLA_CUDA=ON"))));
}

TEST_F(ChildTest, FoldersThatAreOfNoUseAreRefused) {
  ChildOptions given = options();
  given.folder = "";
  EXPECT_THAT([&] { (void)run_profiled({"true"}, given); }, ThrowsMessage<UsageError>(HasSubstr("cannot be written")));
  profiling::write_file(folder / "file", "x");
  given.folder = folder / "file/run";
  EXPECT_THAT(
      [&] { (void)run_profiled({"true"}, given); },
      ThrowsMessage<UsageError>(AllOf(HasSubstr("cannot be written to the folder"), HasSubstr("Not a directory"))));
  given.folder = folder / "used/deeper";
  (void)run_profiled({PIANOLA_TEST_PROGRAM, "cuda", "work=1"}, given);
  EXPECT_THAT([&] { (void)run_profiled({"true"}, given); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("holds recordings already"), HasSubstr("--output"))));
}

TEST_F(ChildTest, AnotherInjectedProfilerIsRefused) {
  setenv("CUDA_INJECTION64_PATH", "/opt/nvidia/nsight/libToolsInjection64.so", 1);
  EXPECT_THAT([&] { (void)run_profiled({"true"}, options()); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("another profiler is to be loaded already"),
                                              HasSubstr("libToolsInjection64.so"), HasSubstr("unset"))));
}

}  // namespace
}  // namespace pianola::child_test

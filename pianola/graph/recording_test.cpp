#include <pianola/graph/recording.hpp>

#include <pianola/core/error.hpp>
#include <pianola/graph/capture_session.hpp>
#include <pianola/graph/island.hpp>
#include <pianola/graph/open_capture.hpp>
#include <pianola/trace/op_stream.hpp>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace pianola::testing::recording_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Throws;
using ::testing::ThrowsMessage;

struct ThrowingObserver final : trace::OpObserver {
  void on_op_begin(const trace::OpSpan& /*op*/) override { throw std::runtime_error("no room for it"); }
};

/// Logs what it is called for, and records nothing. A call of it can fail, and a recording: the one ahead is the first, the one that
/// counts the second.
class LoggingBackend final : public graph::Backend {
 public:
  std::vector<std::string> calls;
  int failing_call = -1;             // by its place among the calls
  int recording_with_offence = 0;    // by its number; 0: none
  int recording_without_memory = 0;  // to watch it
  bool failed = false;
  bool is_open = false;  // a recording, to be ended or abandoned
  int abandoned = 0;

  std::vector<at::Generator> default_generators() const override { return {at::detail::getDefaultCPUGenerator()}; }
  bool executes_while_recording() const noexcept override { return false; }
  void check_may_capture(const CaptureOptions& /*options*/) const override {}
  std::unique_ptr<graph::StreamScope> enter(const CaptureOptions& /*options*/) override {
    log("enter");
    return nullptr;
  }
  void record_ahead(memory::StepRun /*run*/) override { log("record_ahead"); }
  void plan_memory(memory::StepRun /*run*/) override { log("plan_memory"); }
  void begin(const CaptureOptions& /*options*/) override {
    is_open = true;
    ++recordings_;
    log("begin");
  }
  std::vector<trace::OpObserver*> observers() override {
    log("observers");
    if (recordings_ != recording_without_memory) return {};
    return {&throwing_};
  }
  TraceRecorderOptions recorder_options() override { return {}; }
  std::optional<std::string> end(const OpTrace* /*trace*/, const CaptureOptions& /*options*/) override {
    log("end");
    return std::nullopt;
  }
  std::optional<memory::StepRun> end_ahead(const OpTrace& /*trace*/, const memory::StepRun& /*run*/,
                                           std::span<const ByteSpan> /*places*/) override {
    log("end_ahead");
    is_open = false;
    return std::nullopt;
  }
  void choose(const OpTrace* /*trace*/, const SaveStorage& /*save*/) override { log("choose"); }
  void abandon() noexcept override {
    is_open = false;
    ++abandoned;
  }
  std::optional<Diagnosis> offence(const OpTrace* /*trace*/) const override {
    if (!is_open || recordings_ != recording_with_offence) return std::nullopt;
    return Diagnosis{.what = "aten::nonzero waits for the device"};
  }

  void copy_inputs(std::span<const at::Tensor> /*sources*/) override {}
  void replay() override {}
  void reset() noexcept override {}
  GraphPoolRef pool() const override { return {}; }
  void describe(GraphInfo& /*info*/) const override {}
  void account(GraphMemory& /*memory*/) const override {}
  void write_dot(std::ostream& /*out*/, const OpTrace* /*trace*/) const override {}

 private:
  void log(const char* call) {
    const bool fails = static_cast<int>(calls.size()) == failing_call;
    calls.emplace_back(call);
    if (!fails) return;
    failed = true;
    throw std::runtime_error("the driver failed");
  }

  int recordings_ = 0;
  ThrowingObserver throwing_;
};

/// A capture with one eager run, a recording ahead, and the one that counts.
class RecordingTest : public ::testing::Test {
 protected:
  graph::CaptureResult record() {
    const CaptureOptions options = {.warmup = 1, .plan_memory = true, .accept_capture_path = true};
    return graph::record_step(
        backend,
        [this] {
          if (++runs == throwing_run) throw std::logic_error("the user's own");
          y = at::mul(x, x);
        },
        options);
  }

  static void expect_thread_is_free() {
    EXPECT_FALSE(graph::capture_is_open());
    EXPECT_EQ(graph::open_generators(), nullptr);
    EXPECT_FALSE(trace::OpStream::watches_this_thread());
    EXPECT_EQ(graph::Islands::current(), nullptr);
  }

  const at::Tensor x = at::ones({4});
  at::Tensor y;
  LoggingBackend backend;
  int runs = 0;
  int throwing_run = 0;  // by its number; 0: none
};

TEST_F(RecordingTest, TheOneAheadComesBeforeTheOneThatCounts) {
  const graph::CaptureResult result = record();
  EXPECT_THAT(backend.calls, ElementsAre("enter", "record_ahead", "begin", "observers", "end_ahead", "plan_memory",
                                         "begin", "observers", "end", "choose"));
  EXPECT_EQ(runs, 3);
  EXPECT_EQ(backend.abandoned, 0);
  ASSERT_EQ(result.trace->ops().size(), 1U);
  EXPECT_EQ(result.trace->name(result.trace->ops().front()), "aten::mul.Tensor");
  expect_thread_is_free();
}

TEST_F(RecordingTest, TheBackendDropsAllItEnteredForWhicheverCallOfItFails) {
  int failing = 0;
  for (;; ++failing) {
    backend = {};
    backend.failing_call = failing;
    try {
      (void)record();
    } catch (const std::runtime_error&) {
    }
    if (!backend.failed) break;  // past the last call: all went well
    EXPECT_EQ(backend.abandoned, backend.calls.back() == "enter" ? 0 : 1) << "at " << backend.calls.back();
    EXPECT_FALSE(backend.is_open) << "at " << backend.calls.back();
    expect_thread_is_free();
  }
  EXPECT_EQ(failing, 10);
}

TEST_F(RecordingTest, WhatTheStepThrowsComesOutUnchangedOfEachRun) {
  for (throwing_run = 1; throwing_run <= 3; ++throwing_run) {
    runs = 0;
    backend = {};
    EXPECT_THAT([this] { (void)record(); }, ThrowsMessage<std::logic_error>(HasSubstr("the user's own")));
    EXPECT_EQ(runs, throwing_run);
    EXPECT_EQ(backend.abandoned, 1) << "in run " << throwing_run;
    expect_thread_is_free();
  }
}

TEST_F(RecordingTest, AnOffenceEndsEither) {
  for (int recording = 1; recording <= 2; ++recording) {
    backend = {};
    backend.recording_with_offence = recording;
    EXPECT_THAT([this] { (void)record(); },
                ThrowsMessage<CaptureError>(HasSubstr("aten::nonzero waits for the device")));
    EXPECT_EQ(backend.calls.back(), "observers") << "recording " << recording;
    EXPECT_EQ(backend.abandoned, 1) << "recording " << recording;
    expect_thread_is_free();
  }
}

TEST_F(RecordingTest, OneThatCouldNotBeWatchedIsRefusedEither) {
  for (int recording = 1; recording <= 2; ++recording) {
    backend = {};
    backend.recording_without_memory = recording;
    EXPECT_THAT([this] { (void)record(); },
                ThrowsMessage<CaptureError>(HasSubstr("could not be recorded, from aten::mul on: no room for it")));
    EXPECT_EQ(backend.abandoned, 1) << "recording " << recording;
    expect_thread_is_free();
  }
}

}  // namespace
}  // namespace pianola::testing::recording_test

#pragma once
#include <pianola/audit/cuda/cuda_calls.hpp>
#include <pianola/audit/cuda/testing/raw_kernel.hpp>
#include <pianola/trace/op_stream.hpp>
#include <pianola/trace/testing/device_test.hpp>
#include <pianola/trace/trace_recorder.hpp>

#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <gmock/gmock.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <source_location>
#include <string>
#include <vector>

namespace pianola::testing {

inline int line_here(std::source_location place = std::source_location::current()) {
  return static_cast<int>(place.line());
}

/// What steps on a side stream ask CUDA for.
class CudaCallsTest : public DeviceTest {
 protected:
  using CudaFinding = auditing::CudaFinding;
  using CUDAStream = c10::cuda::CUDAStream;
  using CUDAStreamGuard = c10::cuda::CUDAStreamGuard;

  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    own = c10::cuda::getStreamFromPool();
    side = c10::cuda::getStreamFromPool();
    kernel.emplace();
    x = randn({16, 16});
    synchronize();
  }

  /// Of the second run, when libraries have set themselves up.
  std::vector<CudaFinding> findings_of(const std::function<void()>& step) {
    synchronize();
    const CUDAStreamGuard guard(own);
    step();
    auditing::CudaCallLog log(own);
    TraceRecorder recorder({.call_sites = true});
    log.start();
    {
      const trace::OpStream watch({&recorder, &log});
      step();
    }
    log.stop();
    own.synchronize();
    notes = log.notes();
    return log.findings(recorder.trace());
  }

  /// Their rules, with the operation where one is named: "PG108", "PG701 aten::relu".
  std::vector<std::string> rules_of(const std::function<void()>& step) {
    std::vector<std::string> rules;
    for (const CudaFinding& found : findings_of(step)) {
      rules.push_back(std::string(found.finding.rule->id) + (found.finding.op.empty() ? "" : " " + found.finding.op));
    }
    EXPECT_THAT(notes, ::testing::IsEmpty());
    return rules;
  }

  /// One finding of that rule, at the line of the test that the step notes in `line`.
  void expect_at_line(const char* rule, const std::function<void()>& step,
                      std::source_location test = std::source_location::current()) {
    const std::vector<CudaFinding> found = findings_of(step);
    ASSERT_EQ(found.size(), 1U) << rule;
    EXPECT_EQ(found[0].finding.rule->id, rule) << found[0].finding.what;
    EXPECT_THAT(found[0].finding.place.file,
                ::testing::EndsWith(std::filesystem::path(test.file_name()).filename().string()));
    EXPECT_EQ(found[0].finding.place.line, line);
    EXPECT_THAT(notes, ::testing::IsEmpty());
  }

  void fork(const CUDAStream& to) {
    at::cuda::CUDAEvent& event = events.emplace_back();
    event.record(c10::cuda::getCurrentCUDAStream());
    event.block(to);
  }
  void join(const CUDAStream& from) {
    at::cuda::CUDAEvent& event = events.emplace_back();
    event.record(from);
    event.block(c10::cuda::getCurrentCUDAStream());
  }

  // The default stream until SetUp(), which knows whether there is a device to ask for others.
  CUDAStream own{CUDAStream::UNCHECKED, c10::Stream(c10::Stream::UNSAFE, c10::Device("cuda:0"), 0)};
  CUDAStream side = own;
  std::vector<at::cuda::CUDAEvent> events;
  std::optional<auditing::RawKernel> kernel;
  std::vector<std::string> notes;
  at::Tensor x;
  int line = 0;
};

}  // namespace pianola::testing

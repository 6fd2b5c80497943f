#include <pianola/audit/cuda/cuda_calls.hpp>

#include <pianola/cuda/fake_cupti.hpp>
#include <pianola/trace/op_stream.hpp>
#include <pianola/trace/trace_recorder.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/record_function.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>
#include <cupti_runtime_cbid.h>
#include <generated_cuda_runtime_api_meta.h>

#include <gmock/gmock.h>

#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace pianola::auditing::logged_calls_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const auto kOwn = reinterpret_cast<cudaStream_t>(std::uintptr_t{0x100});
const auto kSide = reinterpret_cast<cudaStream_t>(std::uintptr_t{0x200});
const auto kEvent = reinterpret_cast<cudaEvent_t>(std::uintptr_t{0x300});

/// Calls something while the operation of that name runs.
class Inside final : public trace::OpObserver {
 public:
  Inside(std::string name, std::function<void()> action) : name_(std::move(name)), action_(std::move(action)) {}
  void on_op_begin(const trace::OpSpan& op) override {
    if (op.info->name == name_) action_();
  }

 private:
  std::string name_;
  std::function<void()> action_;
};

/// A stream that nobody asks for its handle: torch asks a driver then.
c10::cuda::CUDAStream unasked_stream() {
  const c10::Stream current(c10::Stream::DEFAULT, c10::Device(c10::DeviceType::CUDA, 0));
  return c10::cuda::CUDAStream(c10::cuda::CUDAStream::UNCHECKED, current);
}

/// Operations of the CPU, and calls of CUDA by a CUPTI without a GPU in between.
class LoggedCalls : public ::testing::Test {
 protected:
  void wait() { fake.runtime_call(CUPTI_RUNTIME_TRACE_CBID_cudaDeviceSynchronize_v3020); }
  void query() {
    const cudaEventQuery_v3020_params parameters{.event = kEvent};
    fake.runtime_call(CUPTI_RUNTIME_TRACE_CBID_cudaEventQuery_v3020, &parameters);
  }
  void launch(cudaStream_t stream) {
    const cudaLaunchKernel_v7000_params parameters{
        .func = nullptr, .gridDim = dim3(), .blockDim = dim3(), .args = nullptr, .sharedMem = 0, .stream = stream};
    fake.runtime_call(CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000, &parameters);
  }
  void copy_to_host() {
    const cudaMemcpyAsync_v3020_params parameters{
        .dst = nullptr, .src = nullptr, .count = 4, .kind = cudaMemcpyDeviceToHost, .stream = kOwn};
    fake.runtime_call(CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyAsync_v3020, &parameters);
  }
  void record(cudaStream_t stream) {
    const cudaEventRecord_v3020_params parameters{.event = kEvent, .stream = stream};
    fake.runtime_call(CUPTI_RUNTIME_TRACE_CBID_cudaEventRecord_v3020, &parameters);
  }

  void stream_wait(cudaStream_t stream, unsigned flags = 0) {
    const cudaStreamWaitEvent_v3020_params parameters{.stream = stream, .event = kEvent, .flags = flags};
    fake.runtime_call(CUPTI_RUNTIME_TRACE_CBID_cudaStreamWaitEvent_v3020, &parameters);
  }

  void run(const std::function<void()>& step, std::vector<trace::OpObserver*> more = {}) {
    std::vector<trace::OpObserver*> observers = {&recorder, &log};
    observers.insert(observers.end(), more.begin(), more.end());
    log.start({.cupti = &fake.table, .own = kOwn, .current_stream = [this] { return current; }});
    {
      const trace::OpStream watch(std::move(observers));
      step();
    }
    log.stop();
  }
  /// "cudaDeviceSynchronize@1": its name, and behind how many operations; "in" instead of "@" where it was inside.
  [[nodiscard]] std::vector<std::string> calls() const {
    std::vector<std::string> all;
    for (const CudaCall& call : log.calls()) {
      all.push_back(call.api.name + std::string(call.inside ? " in " : " @ ") + std::to_string(call.operation));
    }
    return all;
  }
  [[nodiscard]] std::vector<std::string> rules() const {
    std::vector<std::string> all;
    for (const CudaFinding& found : log.findings(recorder.trace())) all.emplace_back(found.finding.rule->id);
    return all;
  }
  /// What is logged of something that happens inside an operation of ATen's that computes.
  std::vector<std::string> calls_inside(const std::function<void()>& action) {
    Inside inside("aten::mm", action);
    run([&] { at::mm(x, x); }, {&inside});
    return calls();
  }

  FakeCupti fake;
  cudaStream_t current = kOwn;
  CudaCallLog log{unasked_stream()};
  TraceRecorder recorder{{.call_sites = true}};
  at::Tensor x = at::ones({4, 4});
};

TEST_F(LoggedCalls, ComeWithTheOperationsAroundThem) {
  run([&] {
    wait();
    at::relu(x);
    wait();
    at::relu(x);
    query();
  });
  EXPECT_THAT(calls(), ElementsAre("cudaDeviceSynchronize @ 0", "cudaDeviceSynchronize @ 1", "cudaEventQuery @ 2"));
  EXPECT_THAT(rules(), ElementsAre("PG108", "PG108", "PG109"));
}

TEST_F(LoggedCalls, OfATensOperationsAreLeftOut) {
  EXPECT_THAT(calls_inside([&] {
                launch(kOwn);
                query();
                record(kOwn);
                wait();
                launch(kSide);  // a library's own stream
              }),
              IsEmpty());
}

TEST_F(LoggedCalls, OfAnOperationThatCopiesToTheHostAndWaitsAreAValueRead) {
  EXPECT_THAT(calls_inside([&] {
                copy_to_host();
                wait();
              }),
              ElementsAre("cudaDeviceSynchronize in 1"));
  EXPECT_THAT(rules(), ElementsAre("PG101"));
}

TEST_F(LoggedCalls, OfAnOperationThatIsKnownToReadAreLeftToTheTrace) {
  Inside inside("aten::_local_scalar_dense", [&] {
    copy_to_host();
    wait();
  });
  run([&] { (void)x.sum().item<float>(); }, {&inside});
  EXPECT_THAT(calls(), IsEmpty());
}

TEST_F(LoggedCalls, OfOperationsOnOtherStreamsAreKept) {
  current = kSide;
  EXPECT_THAT(calls_inside([&] { launch(kSide); }), ElementsAre("cudaLaunchKernel in 1"));
  EXPECT_THAT(rules(), ElementsAre("PG703"));
}

TEST_F(LoggedCalls, OfTheStepsStreamAreNothingNew) {
  run([&] {
    launch(kOwn);
    at::relu(x);
  });
  EXPECT_THAT(calls(), IsEmpty());
}

TEST_F(LoggedCalls, OfTheStepsStreamAreLoggedOnRequest) {
  log.log_all_launches();
  run([&] {
    at::relu(x);
    launch(kOwn);
  });
  EXPECT_THAT(calls(), ElementsAre("cudaLaunchKernel @ 1"));
}

TEST_F(LoggedCalls, OfEventsAreOrdered) {
  run([&] {
    record(kOwn);
    at::relu(x);
  });
  EXPECT_THAT(calls(), ElementsAre("cudaEventRecord @ 0"));
  EXPECT_THAT(rules(), IsEmpty());
}

TEST_F(LoggedCalls, OfExternalEventsAreFreeToCrossTheBorder) {
  run([&] { stream_wait(kOwn, cudaEventWaitExternal); });
  EXPECT_THAT(rules(), IsEmpty());
  run([&] { stream_wait(kOwn); });
  EXPECT_THAT(rules(), ElementsAre("PG704"));
}

TEST_F(LoggedCalls, OfPianolasOwnAreLeftOut) {
  run([&] {
    const at::DisableRecordFunctionGuard unrecorded;
    wait();
  });
  EXPECT_THAT(calls(), IsEmpty());
}

TEST_F(LoggedCalls, OfOtherThreadsAreNoFindings) {
  run([&] { std::thread([&] { wait(), query(), launch(kSide); }).join(); });
  EXPECT_THAT(calls(), ElementsAre("cudaDeviceSynchronize @ 0")) << "those that no capture in mode global survives";
  EXPECT_NE(log.calls()[0].thread, std::this_thread::get_id());
  EXPECT_THAT(rules(), IsEmpty());
  EXPECT_THAT(log.notes(), ElementsAre(HasSubstr("another thread called cudaDeviceSynchronize")));
}

TEST_F(LoggedCalls, OfOtherThreadsOrderStreams) {
  run([&] {
    record(kOwn);
    stream_wait(kSide);
    launch(kSide);
    std::thread([&] { record(kSide), stream_wait(kOwn); }).join();
  });
  EXPECT_THAT(rules(), IsEmpty());
}

TEST_F(LoggedCalls, OfAutogradsThreadAreTheSteps) {
  const at::Tensor weight = at::ones({4, 4}).requires_grad_();
  std::thread::id of_hook;
  run([&] {
    const at::Tensor y = at::mm(x, weight);
    y.register_hook([&](const at::Tensor& gradient) {
      of_hook = std::this_thread::get_id();
      wait();
      return gradient;
    });
    y.sum().backward();
  });
  ASSERT_EQ(log.calls().size(), 1U);
  EXPECT_TRUE(log.calls()[0].of_step);
  EXPECT_EQ(log.calls()[0].thread, of_hook);
  EXPECT_FALSE(log.calls()[0].inside);
}

TEST_F(LoggedCalls, EndWithTheRun) {
  run([&] { wait(); });
  wait();
  EXPECT_THAT(calls(), ElementsAre("cudaDeviceSynchronize @ 0"));
  EXPECT_EQ(fake.callback, nullptr) << "others may subscribe between runs";
  run([] {});
  EXPECT_THAT(calls(), IsEmpty()) << "of the run before";
}

TEST_F(LoggedCalls, AreNotLoggedWithoutEnd) {
  run([&] {
    for (int i = 0; i < 30'000; ++i) query();
  });
  EXPECT_EQ(log.calls().size(), 20'000U);
  EXPECT_THAT(log.notes(), ElementsAre(HasSubstr("not all of its calls were looked at")));
}

// torch warns before it waits; CUPTI is not there.
TEST_F(LoggedCalls, WithoutCuptiAreTorchsOwnWaits) {
  Inside in_product("aten::mm", [] { c10::cuda::warn_or_error_on_sync(); });
  Inside in_read("aten::_local_scalar_dense", [] { c10::cuda::warn_or_error_on_sync(); });
  log.start(CudaView{});
  {
    const trace::OpStream watch({&recorder, &log, &in_product, &in_read});
    c10::cuda::warn_or_error_on_sync();
    at::mm(x, x);
    (void)x.sum().item<float>();
    wait();
  }
  log.stop();
  EXPECT_THAT(calls(), ElementsAre("a synchronizing function of torch @ 0", "a synchronizing function of torch in 1"));
  EXPECT_THAT(rules(), ElementsAre("PG108", "PG101"));
  EXPECT_THAT(log.notes(), ElementsAre(HasSubstr("there is no CUPTI library on this machine")));
}

}  // namespace
}  // namespace pianola::auditing::logged_calls_test

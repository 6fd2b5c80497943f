#include <pianola/audit/cuda/cuda_calls.hpp>

#include <pianola/audit/cuda/testing/cuda_calls_fixture.hpp>
#include <pianola/cuda/cupti.hpp>
#include <pianola/graph/graph.hpp>
#include <pianola/graph/testing/mlp.hpp>
#include <pianola/trace/trace_recorder.hpp>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/relu.h>
#include <c10/cuda/CUDAFunctions.h>
#include <torch/library.h>

#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace pianola::cuda_calls_test {
namespace {

using namespace auditing;  // NOLINT(google-build-using-namespace): steps in that one would count as Pianola's own code

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::line_here;

class CudaCallsTest : public testing::CudaCallsTest {};
INSTANTIATE_TEST_SUITE_P(On, CudaCallsTest, ::testing::Values("cuda"), testing::device_name);

// What must not be reported.

TEST_P(CudaCallsTest, FindNothingInATrainingStep) {
  testing::Training training(device(), 0.1);
  EXPECT_THAT(rules_of([&] { training.step(); }), IsEmpty());
}

TEST_P(CudaCallsTest, FindNothingInBackwardOnAThreadOfAutograd) {
  testing::Mlp model(device(), 2, 3);
  EXPECT_THAT(rules_of([&] {
                for (at::Tensor& parameter : model.parameters) parameter.mutable_grad().reset();
                model(x, 0.2).sum().backward();
              }),
              IsEmpty());
}

TEST_P(CudaCallsTest, FindNothingInAKernelOnTheStepsStream) {
  EXPECT_THAT(rules_of([&] { (*kernel)(x, 0.5F); }), IsEmpty());
}

TEST_P(CudaCallsTest, FindNothingOnASideStreamThatIsForkedAndJoined) {
  EXPECT_THAT(rules_of([&] {
                const at::Tensor y = at::relu(x);
                fork(side);
                {
                  const CUDAStreamGuard guard(side);
                  (*kernel)(y, 0.5F);
                  at::mm(y, y);
                }
                join(side);
                at::relu(y);
              }),
              IsEmpty());
}

TEST_P(CudaCallsTest, FindNothingInBackwardOfASideStream) {
  const at::Tensor weight = randn({16, 16}).requires_grad_();
  EXPECT_THAT(rules_of([&] {
                weight.mutable_grad().reset();
                at::Tensor loss;
                fork(side);
                {
                  const CUDAStreamGuard guard(side);
                  loss = at::mm(x, weight).sum();
                }
                join(side);
                (loss * 2).backward();
              }),
              IsEmpty());
}

TEST_P(CudaCallsTest, FindNothingInTheEventsOfTheAllocator) {
  EXPECT_THAT(rules_of([&] {
                for (int i = 0; i < 3; ++i) {
                  at::Tensor y = at::relu(x);
                  fork(side);
                  {
                    const CUDAStreamGuard guard(side);
                    at::mm(y, y);
                    y.record_stream(side);
                  }
                  join(side);
                  y.reset();
                }
              }),
              IsEmpty());
}

TEST_P(CudaCallsTest, LeaveValuesThatOperationsReadAndCopiesToTheTrace) {
  EXPECT_THAT(rules_of([&] {
                (void)x.sum().item<float>();
                (void)x.cpu();
                (void)at::empty({4}).to(device());
                (void)at::nonzero(x);
              }),
              IsEmpty());
}

// The host waits.

TEST_P(CudaCallsTest, FindAWaitForTheDeviceByTorch) {
  expect_at_line("PG108", [&] {
    at::relu(x);
    c10::cuda::device_synchronize(), line = line_here();
  });
}

TEST_P(CudaCallsTest, FindAWaitForAStreamByAnInlineFunctionOfTorch) {
  expect_at_line("PG108", [&] {
    at::relu(x);
    c10::cuda::getCurrentCUDAStream().synchronize(), line = line_here();
  });
}

TEST_P(CudaCallsTest, FindAWaitForAnEvent) {
  expect_at_line("PG108", [&] {
    at::cuda::CUDAEvent event;
    event.record();
    event.synchronize(), line = line_here();
  });
}

TEST_P(CudaCallsTest, FindAWaitByOtherCode) {
  expect_at_line("PG110", [&] {
    at::relu(x);
    cudaDeviceSynchronize(), line = line_here();
  });
}

TEST_P(CudaCallsTest, FindAWaitInAHookOnAThreadOfAutograd) {
  const at::Tensor weight = randn({16, 16}).requires_grad_();
  expect_at_line("PG110", [&] {
    weight.mutable_grad().reset();
    const at::Tensor y = at::mm(x, weight);
    y.register_hook([&](const at::Tensor& gradient) {
      cudaDeviceSynchronize(), line = line_here();
      return gradient;
    });
    y.sum().backward();
  });
}

TEST_P(CudaCallsTest, FindEveryWait) {
  EXPECT_THAT(rules_of([&] {
                for (int i = 0; i < 3; ++i) cudaDeviceSynchronize();
              }),
              ElementsAre("PG110", "PG110", "PG110"));
}

TEST_P(CudaCallsTest, FindQueries) {
  expect_at_line("PG109", [&] {
    at::relu(x);
    (void)c10::cuda::getCurrentCUDAStream().query(), line = line_here();
  });
  EXPECT_THAT(rules_of([&] {
                at::cuda::CUDAEvent event;
                event.record();
                (void)event.query();
              }),
              ElementsAre("PG109"));
}

// Inside operations of other libraries.

at::Tensor waits(const at::Tensor& t) {
  cudaDeviceSynchronize();
  return t.clone();
}
at::Tensor reads(const at::Tensor& t) { return t * t.sum().item<float>(); }

class CudaCallsOfLibraries : public CudaCallsTest {
 protected:
  static at::Tensor call(const char* name, const at::Tensor& argument) {
    static const torch::Library library = [] {
      torch::Library made(torch::Library::DEF, "pianola_cuda_calls", std::nullopt, __FILE__, __LINE__);
      made.def("waits(Tensor x) -> Tensor", torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, &waits));
      made.def("reads(Tensor x) -> Tensor", torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, &reads));
      return made;
    }();
    c10::Stack stack{argument};
    c10::Dispatcher::singleton().findSchemaOrThrow(name, "").callBoxed(stack);
    return stack[0].toTensor();
  }
};
INSTANTIATE_TEST_SUITE_P(On, CudaCallsOfLibraries, ::testing::Values("cuda"), testing::device_name);

TEST_P(CudaCallsOfLibraries, FindWhatTheirOperationsWaitFor) {
  EXPECT_THAT(rules_of([&] { call("pianola_cuda_calls::waits", x); }), ElementsAre("PG110 pianola_cuda_calls::waits"));
}

TEST_P(CudaCallsOfLibraries, FindTheValuesThatTheirOperationsRead) {
  EXPECT_THAT(rules_of([&] { call("pianola_cuda_calls::reads", x); }), ElementsAre("PG101 pianola_cuda_calls::reads"));
}

// Bookkeeping.

TEST_P(CudaCallsTest, SayWhatOtherThreadsDidInANote) {
  EXPECT_THAT(findings_of([&] { std::thread([] { cudaDeviceSynchronize(); }).join(); }), IsEmpty());
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_THAT(notes[0], HasSubstr("another thread called cudaDeviceSynchronize"));
}

TEST_P(CudaCallsTest, LeaveOutPianolasOwnWork) {
  EXPECT_THAT(rules_of([&] {
                const at::DisableRecordFunctionGuard unrecorded;
                cudaDeviceSynchronize();
              }),
              IsEmpty());
}

TEST_P(CudaCallsTest, NameTheOperationBehindWhichACallWasMade) {
  const auto found = findings_of([&] {
    at::relu(x);
    at::mm(x, x);
    cudaDeviceSynchronize();
    at::relu(x);
  });
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].operation, 2U);
  EXPECT_FALSE(found[0].inside);
}

TEST_P(CudaCallsTest, ForgetTheRunBefore) {
  const CUDAStreamGuard guard(own);
  CudaCallLog log(own);
  for (int run = 0; run < 20; ++run) {
    log.start();
    cudaDeviceSynchronize();
    log.stop();
    EXPECT_EQ(log.calls().size(), 1U) << run;
    cudaDeviceSynchronize();
    EXPECT_EQ(log.calls().size(), 1U) << "after stop()";
  }
}

TEST_P(CudaCallsTest, LogOtherLaunchesOnRequest) {
  const CUDAStreamGuard guard(own);
  CudaCallLog log(own);
  log.log_all_launches();
  log.start();
  {
    const trace::OpStream watch({&log});
    at::relu(x);
    (*kernel)(x, 0.5F);
  }
  log.stop();
  ASSERT_EQ(log.calls().size(), 1U);
  EXPECT_STREQ(log.calls()[0].api.name, "cuLaunchKernel");
  EXPECT_EQ(log.calls()[0].operation, 1U);
}

TEST_P(CudaCallsTest, FallBackToTheSyncDebugMode) {
  const CUDAStreamGuard guard(own);
  const auto other_tool = CuptiSubscription::open([](const ApiCall&) {});
  ASSERT_EQ(other_tool.problem, "");
  CudaCallLog log(own);
  TraceRecorder recorder({.call_sites = true});
  log.start();
  {
    const trace::OpStream watch({&recorder, &log});
    (void)x.sum().item<float>();
    own.synchronize(), line = line_here();
  }
  log.stop();
  const std::vector<CudaFinding> found = log.findings(recorder.trace());
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].finding.rule->id, "PG108");
  EXPECT_EQ(found[0].finding.place.line, line);
  ASSERT_EQ(log.notes().size(), 1U);
  EXPECT_THAT(log.notes()[0], HasSubstr("another tool uses CUPTI"));
}

}  // namespace
}  // namespace pianola::cuda_calls_test

#include <pianola/audit/cuda/testing/cuda_calls_fixture.hpp>

#include <ATen/ops/mm.h>
#include <ATen/ops/relu.h>
#include <cuda_runtime_api.h>

namespace pianola::cuda_stream_calls_test {
namespace {

using namespace auditing;  // NOLINT(google-build-using-namespace): steps in that one would count as Pianola's own code

using ::testing::ElementsAre;
using testing::line_here;

/// Other streams than the step's, and events from outside.
class CudaStreamCalls : public testing::CudaCallsTest {};
INSTANTIATE_TEST_SUITE_P(On, CudaStreamCalls, ::testing::Values("cuda"), testing::device_name);

TEST_P(CudaStreamCalls, FindALaunchOnTheDefaultStream) {
  expect_at_line("PG701", [&] {
    at::relu(x);
    kernel->launch(x, 0.5F, nullptr), line = line_here();
  });
}

TEST_P(CudaStreamCalls, FindAFillOfTheDefaultStream) {
  expect_at_line("PG701", [&] { cudaMemset(x.data_ptr(), 0, 16), line = line_here(); });
}

TEST_P(CudaStreamCalls, FindOperationsOnTheDefaultStream) {
  EXPECT_THAT(rules_of([&] {
                const CUDAStreamGuard guard(c10::cuda::getDefaultCUDAStream());
                at::relu(x);
              }),
              ElementsAre("PG701 aten::relu"));
}

TEST_P(CudaStreamCalls, FindASideStreamThatIsNotForked) {
  expect_at_line("PG703", [&] {
    {
      const CUDAStreamGuard guard(side);
      at::relu(x), line = line_here();
      at::mm(x, x);
    }
    join(side);
  });
}

TEST_P(CudaStreamCalls, FindAKernelOnASideStreamThatIsNotForked) {
  expect_at_line("PG703", [&] {
    kernel->launch(x, 0.5F, side.stream()), line = line_here();
    join(side);
  });
}

TEST_P(CudaStreamCalls, FindASideStreamThatIsNotJoined) {
  expect_at_line("PG702", [&] {
    fork(side);
    const CUDAStreamGuard guard(side);
    at::mm(x, x);
    at::relu(x), line = line_here();
  });
}

TEST_P(CudaStreamCalls, FindAWaitForAnEventFromOutside) {
  at::cuda::CUDAEvent event;
  event.record(c10::cuda::getDefaultCUDAStream());
  expect_at_line("PG704", [&] {
    at::relu(x);
    event.block(c10::cuda::getCurrentCUDAStream()), line = line_here();
  });
}

}  // namespace
}  // namespace pianola::cuda_stream_calls_test

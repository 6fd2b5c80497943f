#include <pianola/audit/cuda/testing/cuda_calls_fixture.hpp>

#include <cuda_runtime_api.h>

#include <vector>

namespace pianola::cuda_memory_calls_test {
namespace {

using namespace auditing;  // NOLINT(google-build-using-namespace): steps in that one would count as Pianola's own code

using ::testing::IsEmpty;
using testing::line_here;

/// Copies, pinned memory, freed memory.
class CudaMemoryCalls : public testing::CudaCallsTest {};
INSTANTIATE_TEST_SUITE_P(On, CudaMemoryCalls, ::testing::Values("cuda"), testing::device_name);

TEST_P(CudaMemoryCalls, FindBlockingCopies) {
  std::vector<float> host(256);
  expect_at_line("PG110",
                 [&] { cudaMemcpy(host.data(), x.data_ptr(), 1024, cudaMemcpyDeviceToHost), line = line_here(); });
  expect_at_line("PG110", [&] {
    cudaMemcpyAsync(host.data(), x.data_ptr(), 1024, cudaMemcpyDeviceToHost, own.stream()), line = line_here();
  });
}

TEST_P(CudaMemoryCalls, FindCopiesFromMemoryThatIsNotPinned) {
  const std::vector<float> host(256);
  expect_at_line("PG202", [&] {
    cudaMemcpyAsync(x.data_ptr(), host.data(), 1024, cudaMemcpyHostToDevice, own.stream()), line = line_here();
  });
}

TEST_P(CudaMemoryCalls, FindNothingInCopiesOfPinnedMemory) {
  void* pinned = nullptr;
  ASSERT_EQ(cudaMallocHost(&pinned, 1024), cudaSuccess);
  EXPECT_THAT(rules_of([&] {
                cudaMemcpyAsync(pinned, x.data_ptr(), 1024, cudaMemcpyDeviceToHost, own.stream());
                cudaMemcpyAsync(x.data_ptr(), pinned, 1024, cudaMemcpyHostToDevice, own.stream());
              }),
              IsEmpty());
  cudaFreeHost(pinned);
}

TEST_P(CudaMemoryCalls, FindPinnedMemoryThatIsAllocated) {
  void* pinned = nullptr;
  expect_at_line("PG205", [&] { cudaMallocHost(&pinned, 1024), line = line_here(); });
  cudaFreeHost(pinned);
}

TEST_P(CudaMemoryCalls, FindMemoryThatIsFreedAtOnce) {
  void* memory = nullptr;
  const auto step = [&] {
    if (memory != nullptr) cudaFree(memory), line = line_here();
  };
  EXPECT_THAT(rules_of(step), IsEmpty());
  synchronize();
  const CUDAStreamGuard guard(own);
  CudaCallLog log(own);
  ASSERT_EQ(cudaMalloc(&memory, 1024), cudaSuccess);
  log.start();
  step();
  log.stop();
  const std::vector<CudaFinding> found = log.findings(OpTrace());
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].finding.rule->id, "PG110");
  EXPECT_EQ(found[0].finding.place.line, line);
}

}  // namespace
}  // namespace pianola::cuda_memory_calls_test

#include <pianola/audit/cuda/busy_time.hpp>

#include <pianola/graph/testing/device_test.hpp>

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/relu.h>
#include <c10/cuda/CUDAGuard.h>

#include <gmock/gmock.h>

#include <chrono>
#include <functional>
#include <optional>

namespace pianola::auditing::busy_time_test {
namespace {

using std::chrono::milliseconds;

TEST(GpuBound, IsAStepWhoseHostIsDoneLongBeforeTheDevice) {
  const auto finding = gpu_bound({.host = milliseconds(2), .device = milliseconds(10)});
  ASSERT_TRUE(finding.has_value());
  EXPECT_EQ(finding->rule->id, "PG1204");
  EXPECT_EQ(finding->severity, Severity::performance);
  EXPECT_EQ(finding->evidence, "the host takes 2.00 ms to enqueue what the device computes in 10.00 ms");
}

TEST(GpuBound, IsNoStepThatWaitsForTheHost) {
  EXPECT_FALSE(gpu_bound({.host = milliseconds(9), .device = milliseconds(10)}));
  EXPECT_FALSE(gpu_bound({.host = milliseconds(5), .device = milliseconds(10)}));
  EXPECT_FALSE(gpu_bound({.host = {}, .device = std::chrono::microseconds(5)})) << "nothing on the device";
}

class BusyTimeTest : public testing::DeviceTest {
 protected:
  static std::optional<Finding> finding_of(const std::function<void()>& step) {
    const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool();
    const c10::cuda::CUDAStreamGuard guard(stream);
    step();
    return gpu_bound(measure_busy_time(step, stream));
  }
};
INSTANTIATE_TEST_SUITE_P(On, BusyTimeTest, ::testing::Values("cuda"), testing::device_name);

TEST_P(BusyTimeTest, OfLargeProductsIsTheDevices) {
  const at::Tensor x = randn({4096, 4096});
  EXPECT_TRUE(finding_of([&] {
    for (int i = 0; i < 20; ++i) at::mm(x, x);
  }));
}

TEST_P(BusyTimeTest, OfManySmallOperationsIsTheHosts) {
  const at::Tensor x = randn({4});
  EXPECT_FALSE(finding_of([&] {
    for (int i = 0; i < 500; ++i) at::relu(x);
  }));
}

TEST_P(BusyTimeTest, OfAStepThatWaitsIsTheHosts) {
  const at::Tensor x = randn({4096, 4096});
  EXPECT_FALSE(finding_of([&] {
    for (int i = 0; i < 5; ++i) at::mm(x, x);
    c10::cuda::getCurrentCUDAStream().synchronize();
  }));
}

}  // namespace
}  // namespace pianola::auditing::busy_time_test

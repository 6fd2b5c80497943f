#include <pianola/profile/call_kind.hpp>

#include <gtest/gtest.h>

#include <string>

namespace pianola::profiling::call_kind_test {
namespace {

using Kind = HostCall::Kind;

struct Named {
  const char* call;
  Kind kind;
};
class CallKindTable : public ::testing::TestWithParam<Named> {};
TEST_P(CallKindTable, KnowsWhatACallDoes) { EXPECT_EQ(call_kind(GetParam().call), GetParam().kind); }
INSTANTIATE_TEST_SUITE_P(
    Calls, CallKindTable,
    ::testing::Values(Named{"cudaLaunchKernel", Kind::launch}, Named{"cudaLaunchKernel_v7000", Kind::launch},
                      Named{"cudaLaunchKernel_ptsz_v7000", Kind::launch}, Named{"cudaLaunchKernelExC", Kind::launch},
                      Named{"cudaLaunchKernelExC_v11060", Kind::launch}, Named{"__cudaLaunchKernel", Kind::launch},
                      Named{"cuLaunchKernel", Kind::launch}, Named{"cuLaunchKernel_ptsz", Kind::launch},
                      Named{"cuLaunchKernelEx", Kind::launch}, Named{"cudaLaunchCooperativeKernel", Kind::launch},
                      Named{"cudaGraphLaunch", Kind::graph_launch}, Named{"cudaGraphLaunch_v10000", Kind::graph_launch},
                      Named{"cuGraphLaunch", Kind::graph_launch}, Named{"cuGraphLaunch_ptsz", Kind::graph_launch},
                      Named{"cudaMemcpyAsync", Kind::copy}, Named{"cudaMemsetAsync", Kind::copy},
                      Named{"cudaMemset", Kind::copy}, Named{"cuMemcpyDtoHAsync_v2", Kind::copy},
                      Named{"cuMemcpyDtoHAsync_v2_ptsz", Kind::copy}, Named{"cuMemcpyDtoD_v2", Kind::copy},
                      Named{"cuMemsetD2D32Async", Kind::copy}, Named{"cudaMemcpy", Kind::synchronize},
                      Named{"cudaMemcpy_ptds_v7000", Kind::synchronize}, Named{"cudaMemcpy2D", Kind::synchronize},
                      Named{"cuMemcpyDtoH_v2", Kind::synchronize}, Named{"cudaDeviceSynchronize", Kind::synchronize},
                      Named{"cudaStreamSynchronize_v3020", Kind::synchronize},
                      Named{"cudaEventSynchronize", Kind::synchronize}, Named{"cuStreamSynchronize", Kind::synchronize},
                      Named{"cuCtxSynchronize_v2", Kind::synchronize}, Named{"cuEventSynchronize", Kind::synchronize},
                      Named{"cudaFree", Kind::synchronize}, Named{"cudaFreeAsync", Kind::other},
                      Named{"cudaMalloc", Kind::other}, Named{"cudaStreamIsCapturing", Kind::other},
                      Named{"cudaEventQuery", Kind::other}, Named{"cudaGraphUpload", Kind::other},
                      Named{"cudaLaunchHostFunc", Kind::other}, Named{"cudaStreamWaitEvent", Kind::other},
                      Named{"cudalaunchkernel", Kind::other}, Named{"cudaLaunchKernelX", Kind::other},
                      Named{"", Kind::other}),
    [](const auto& named) { return std::to_string(named.index) + "_" + named.param.call; });

TEST(CallKindTest, TakesVersionsAndPerThreadMarksFromNamesInAnyOrder) {
  EXPECT_EQ(without_version("cudaMemcpy_ptds_v7000"), "cudaMemcpy");
  EXPECT_EQ(without_version("cuMemcpyDtoHAsync_v2_ptsz"), "cuMemcpyDtoHAsync");
  EXPECT_EQ(without_version("cudaGraphLaunch"), "cudaGraphLaunch");
}

TEST(CallKindTest, LeavesNumbersThatBelongToANameAlone) {
  EXPECT_EQ(without_version("cuMemsetD8"), "cuMemsetD8");
  EXPECT_EQ(without_version("cuMemsetD2D32_v2"), "cuMemsetD2D32");
  EXPECT_EQ(without_version("cudaDriverGetVersion_v"), "cudaDriverGetVersion_v");
  EXPECT_EQ(without_version("123"), "123");
  EXPECT_EQ(without_version("_v2"), "");
}

TEST(CallKindTest, TellsTheDriverFromTheRuntime) {
  EXPECT_TRUE(is_driver_call("cuLaunchKernel"));
  EXPECT_FALSE(is_driver_call("cudaLaunchKernel"));
  EXPECT_FALSE(is_driver_call("cu"));
}

}  // namespace
}  // namespace pianola::profiling::call_kind_test

#include <pianola/profile/record/recorded_calls.hpp>

#include <pianola/cuda/api_call.hpp>
#include <pianola/profile/testing/fake_activity.hpp>

#include <gtest/gtest.h>

#include <string>

namespace pianola::profiling::recorded_calls_test {
namespace {

using Kind = HostCall::Kind;

struct RecordedCallsTest : ::testing::Test {
  const RecordedCalls calls{FakeActivity::names()};

  [[nodiscard]] const RecordedCall* runtime(CUpti_CallbackId id) const { return calls.find(false, id); }
  [[nodiscard]] const RecordedCall* driver(CUpti_CallbackId id) const { return calls.find(true, id); }
};

TEST_F(RecordedCallsTest, HaveTheirKindAndTheirNameWithoutAVersion) {
  struct Row {
    const RecordedCall* call;
    Kind kind;
    const char* name;
  };
  for (const Row& row : {
           Row{runtime(CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000), Kind::launch, "cudaLaunchKernel"},
           Row{runtime(CUPTI_RUNTIME_TRACE_CBID___cudaLaunchKernel_v13000), Kind::launch, "cudaLaunchKernel"},
           Row{driver(CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx_ptsz), Kind::launch, "cuLaunchKernelEx"},
           Row{runtime(CUPTI_RUNTIME_TRACE_CBID_cudaGraphLaunch_v10000), Kind::graph_launch, "cudaGraphLaunch"},
           Row{driver(CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch_ptsz), Kind::graph_launch, "cuGraphLaunch"},
           Row{runtime(CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyAsync_ptsz_v7000), Kind::copy, "cudaMemcpyAsync"},
           Row{runtime(CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyPeer_v4000), Kind::copy, "cudaMemcpyPeer"},
           Row{runtime(CUPTI_RUNTIME_TRACE_CBID_cudaMemset_ptds_v7000), Kind::copy, "cudaMemset"},
           Row{driver(CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoHAsync_v2), Kind::copy, "cuMemcpyDtoHAsync"},
           Row{runtime(CUPTI_RUNTIME_TRACE_CBID_cudaStreamSynchronize_v3020), Kind::synchronize,
               "cudaStreamSynchronize"},
           Row{runtime(CUPTI_RUNTIME_TRACE_CBID_cudaFreeHost_v3020), Kind::synchronize, "cudaFreeHost"},
       }) {
    ASSERT_NE(row.call, nullptr) << row.name;
    EXPECT_EQ(row.call->kind, row.kind) << row.name;
    EXPECT_EQ(row.call->name, row.name);
  }
}

TEST_F(RecordedCallsTest, WhatOnlyAsksOrAllocatesIsNotRecorded) {
  EXPECT_EQ(runtime(CUPTI_RUNTIME_TRACE_CBID_cudaEventQuery_v3020), nullptr);
  EXPECT_EQ(runtime(CUPTI_RUNTIME_TRACE_CBID_cudaMalloc_v3020), nullptr);
  EXPECT_EQ(driver(CUPTI_DRIVER_TRACE_CBID_cuStreamQuery), nullptr);
  EXPECT_EQ(runtime(CUPTI_RUNTIME_TRACE_CBID_INVALID), nullptr);
  EXPECT_EQ(driver(1'000'000), nullptr) << "of a later CUDA";
}

TEST_F(RecordedCallsTest, OfLaunchesOfKernelsThoseOfTheDriverAreWatched) {
  EXPECT_FALSE(is_watched(*runtime(CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000)));
  EXPECT_TRUE(is_watched(*driver(CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel)));
  EXPECT_TRUE(is_watched(*runtime(CUPTI_RUNTIME_TRACE_CBID_cudaGraphLaunch_v10000)));
}

// The audit knows the same entry points for its own ends, with their parameters: the two must not contradict each other.
TEST(RecordedAndAuditedCallsTest, OfTheRealLibraryAgree) {
  const ActivityApiOpening opening = open_activity_api("");
  if (!opening.api) GTEST_SKIP() << opening.problem.what;
  const RecordedCalls calls(*opening.api);
  EXPECT_GT(calls.all().size(), 150U);
  std::size_t compared = 0;
  for (std::size_t i = 0; const auto entry = api_entry(i); ++i) {
    const auto audited = decode(*entry, nullptr);
    const RecordedCall* recorded = calls.find(entry->driver, entry->id);
    ASSERT_TRUE(audited.has_value());
    const std::string name = audited->name;
    const bool is_of_interest = audited->kind == ApiKind::wait || audited->kind == ApiKind::launch ||
                                audited->kind == ApiKind::copy || audited->kind == ApiKind::fill ||
                                audited->kind == ApiKind::free;
    if (!is_of_interest || name.ends_with("LaunchHostFunc")) {
      EXPECT_EQ(recorded, nullptr) << name;
      continue;
    }
    ASSERT_NE(recorded, nullptr) << name;
    ++compared;
    EXPECT_NE(name.find(recorded->name), std::string::npos) << name << " may carry a version";
    if (name.starts_with("cuMemcpyDtoD")) continue;  // uses the default stream, and does not wait
    const bool waits = audited->kind == ApiKind::wait || audited->kind == ApiKind::free ||
                       (audited->kind == ApiKind::copy && audited->blocking);
    EXPECT_EQ(recorded->kind == Kind::synchronize, waits) << name;
    const bool launches = recorded->kind == Kind::launch || recorded->kind == Kind::graph_launch;
    EXPECT_EQ(launches, audited->kind == ApiKind::launch) << name;
  }
  EXPECT_GT(compared, 60U);
}

}  // namespace
}  // namespace pianola::profiling::recorded_calls_test

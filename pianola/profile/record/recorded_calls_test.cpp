#include <pianola/profile/record/recorded_calls.hpp>

#include <pianola/cuda/api_call.hpp>

#include <cupti_driver_cbid.h>
#include <cupti_runtime_cbid.h>

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>

namespace pianola::profiling::recorded_calls_test {
namespace {

using Kind = HostCall::Kind;

TEST(RecordedCallsTest, WhatTorchCallsHasItsKindAndName) {
  struct Row {
    bool driver;
    CUpti_CallbackId id;
    Kind kind;
    const char* name;
  };
  const Row rows[] = {
      {false, CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000, Kind::launch, "cudaLaunchKernel"},
      {false, CUPTI_RUNTIME_TRACE_CBID___cudaLaunchKernel_v13000, Kind::launch, "cudaLaunchKernel"},
      {false, CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernelExC_v11060, Kind::launch, "cudaLaunchKernelExC"},
      {true, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx, Kind::launch, "cuLaunchKernelEx"},
      {false, CUPTI_RUNTIME_TRACE_CBID_cudaGraphLaunch_v10000, Kind::graph_launch, "cudaGraphLaunch"},
      {true, CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch_ptsz, Kind::graph_launch, "cuGraphLaunch"},
      {false, CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyAsync_v3020, Kind::copy, "cudaMemcpyAsync"},
      {false, CUPTI_RUNTIME_TRACE_CBID_cudaMemsetAsync_v3020, Kind::copy, "cudaMemsetAsync"},
      {true, CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoHAsync_v2, Kind::copy, "cuMemcpyDtoHAsync"},
      {false, CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy_v3020, Kind::synchronize, "cudaMemcpy"},
      {false, CUPTI_RUNTIME_TRACE_CBID_cudaStreamSynchronize_v3020, Kind::synchronize, "cudaStreamSynchronize"},
      {false, CUPTI_RUNTIME_TRACE_CBID_cudaDeviceSynchronize_v3020, Kind::synchronize, "cudaDeviceSynchronize"},
      {false, CUPTI_RUNTIME_TRACE_CBID_cudaEventSynchronize_v3020, Kind::synchronize, "cudaEventSynchronize"},
      {true, CUPTI_DRIVER_TRACE_CBID_cuStreamSynchronize, Kind::synchronize, "cuStreamSynchronize"},
      {false, CUPTI_RUNTIME_TRACE_CBID_cudaFree_v3020, Kind::synchronize, "cudaFree"},
  };
  for (const Row& row : rows) {
    const RecordedCall* call = find_call(row.driver, row.id);
    ASSERT_NE(call, nullptr) << row.name;
    EXPECT_EQ(call->kind, row.kind) << row.name;
    EXPECT_STREQ(call->name, row.name);
  }
}

TEST(RecordedCallsTest, CallsThatOnlyAskOrAllocateAreNotRecorded) {
  EXPECT_EQ(find_call(false, CUPTI_RUNTIME_TRACE_CBID_cudaEventQuery_v3020), nullptr);
  EXPECT_EQ(find_call(false, CUPTI_RUNTIME_TRACE_CBID_cudaEventRecord_v3020), nullptr);
  EXPECT_EQ(find_call(false, CUPTI_RUNTIME_TRACE_CBID_cudaMalloc_v3020), nullptr);
  EXPECT_EQ(find_call(true, CUPTI_DRIVER_TRACE_CBID_cuStreamQuery), nullptr);
  EXPECT_EQ(find_call(false, CUPTI_RUNTIME_TRACE_CBID_INVALID), nullptr);
  EXPECT_EQ(find_call(false, CUPTI_RUNTIME_TRACE_CBID_SIZE), nullptr);
  EXPECT_EQ(find_call(true, 1'000'000), nullptr) << "of a later CUDA";
}

TEST(RecordedCallsTest, OfLaunchesOfKernelsThoseOfTheDriverAreWatched) {
  EXPECT_FALSE(is_watched(*find_call(false, CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernelExC_v11060)));
  EXPECT_TRUE(is_watched(*find_call(true, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx)));
  EXPECT_TRUE(is_watched(*find_call(false, CUPTI_RUNTIME_TRACE_CBID_cudaGraphLaunch_v10000)));
  EXPECT_TRUE(is_watched(*find_call(false, CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyAsync_v3020)));
}

TEST(RecordedCallsTest, EachEntryPointIsThereOnce) {
  std::set<std::pair<bool, CUpti_CallbackId>> seen;
  for (const RecordedCall& call : recorded_calls()) {
    EXPECT_TRUE(seen.insert({call.driver, call.id}).second) << call.name;
    EXPECT_EQ(std::string(call.name).starts_with(call.driver ? "cu" : "cuda"), true) << call.name;
    EXPECT_EQ(find_call(call.driver, call.id), &call) << call.name;
  }
  EXPECT_GT(seen.size(), 120U);
}

// The audit knows the same entry points for its own ends: the two must not contradict each other.
TEST(RecordedCallsTest, TheAuditSeesTheSameCallsTheSameWay) {
  std::size_t compared = 0;
  for (std::size_t i = 0; const auto entry = api_entry(i); ++i) {
    const auto audited = decode(*entry, nullptr);
    const RecordedCall* recorded = find_call(entry->driver, entry->id);
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

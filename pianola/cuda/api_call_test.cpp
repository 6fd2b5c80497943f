#include <pianola/cuda/api_call.hpp>

#include <cuda_runtime_api.h>
#include <cupti_driver_cbid.h>
#include <cupti_runtime_cbid.h>
#include <generated_cuda_runtime_api_meta.h>

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>

namespace pianola::api_call_test {
namespace {

constexpr ApiEntry runtime(std::uint32_t id) { return {.driver = false, .id = id}; }
constexpr ApiEntry driver(std::uint32_t id) { return {.driver = true, .id = id}; }

const auto kStream = reinterpret_cast<CUstream>(std::uintptr_t{0x1000});
const auto kEvent = reinterpret_cast<CUevent>(std::uintptr_t{0x2000});

ApiCall decoded(ApiEntry entry, const void* parameters) {
  const std::optional<ApiCall> call = decode(entry, parameters);
  EXPECT_TRUE(call.has_value());
  return call.value_or(ApiCall{});
}

TEST(ApiCall, OfEveryListedEntryPointHasANameAndIsListedOnce) {
  std::set<std::pair<bool, std::uint32_t>> seen;
  std::size_t count = 0;
  for (; const auto entry = api_entry(count); ++count) {
    EXPECT_TRUE(seen.insert({entry->driver, entry->id}).second) << count;
    const std::optional<ApiCall> call = decode(*entry, nullptr);
    ASSERT_TRUE(call.has_value()) << count;
    EXPECT_NE(std::string(call->name).find(entry->driver ? "cu" : "cuda"), std::string::npos) << call->name;
  }
  EXPECT_GT(count, 80U);
}

TEST(ApiCall, OfAnyOtherEntryPointIsNone) {
  EXPECT_FALSE(decode(runtime(CUPTI_RUNTIME_TRACE_CBID_cudaGetDevice_v3020), nullptr));
  EXPECT_FALSE(decode(driver(CUPTI_DRIVER_TRACE_CBID_cuInit), nullptr));
  EXPECT_FALSE(decode(runtime(1'000'000), nullptr)) << "newer than this code";
  EXPECT_FALSE(decode(driver(1'000'000), nullptr));
}

TEST(ApiCall, TellsStreamAndEventOfAWait) {
  const cudaStreamWaitEvent_v3020_params parameters{.stream = kStream, .event = kEvent, .flags = 0};
  const ApiCall call = decoded(runtime(CUPTI_RUNTIME_TRACE_CBID_cudaStreamWaitEvent_v3020), &parameters);
  EXPECT_EQ(call.kind, ApiKind::stream_wait);
  EXPECT_STREQ(call.name, "cudaStreamWaitEvent");
  EXPECT_EQ(call.stream, kStream);
  EXPECT_EQ(call.event, kEvent);
  EXPECT_TRUE(call.on_stream);
  EXPECT_FALSE(call.external);
  const cudaStreamWaitEvent_v3020_params external{.stream = kStream, .event = kEvent, .flags = cudaEventWaitExternal};
  EXPECT_TRUE(decoded(runtime(CUPTI_RUNTIME_TRACE_CBID_cudaStreamWaitEvent_v3020), &external).external);
}

TEST(ApiCall, OfTheHostWaitingForTheDeviceHasNoParameters) {
  const ApiCall call = decoded(runtime(CUPTI_RUNTIME_TRACE_CBID_cudaDeviceSynchronize_v3020), nullptr);
  EXPECT_EQ(call.kind, ApiKind::wait);
  EXPECT_FALSE(call.on_stream);
}

TEST(ApiCall, ReadsTheDefaultStreamHoweverItIsSpelled) {
  cudaStreamSynchronize_v3020_params parameters{.stream = CU_STREAM_LEGACY};
  EXPECT_EQ(decoded(runtime(CUPTI_RUNTIME_TRACE_CBID_cudaStreamSynchronize_v3020), &parameters).stream, nullptr);
  parameters.stream = nullptr;
  EXPECT_EQ(decoded(runtime(CUPTI_RUNTIME_TRACE_CBID_cudaStreamSynchronize_v3020), &parameters).stream, nullptr);
  EXPECT_EQ(decoded(runtime(CUPTI_RUNTIME_TRACE_CBID_cudaStreamSynchronize_ptsz_v7000), &parameters).stream,
            CU_STREAM_PER_THREAD);
}

TEST(ApiCall, ReadsTheStreamOfALaunchInEveryForm) {
  const cudaLaunchKernel_v7000_params launch{
      .func = nullptr, .gridDim = dim3(), .blockDim = dim3(), .args = nullptr, .sharedMem = 0, .stream = kStream};
  const ApiCall call = decoded(runtime(CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000), &launch);
  EXPECT_EQ(call.kind, ApiKind::launch);
  EXPECT_EQ(call.stream, kStream);
  // The same call as compilers make it, which takes a cudaKernel_t in the place of the function.
  EXPECT_EQ(decoded(runtime(CUPTI_RUNTIME_TRACE_CBID___cudaLaunchKernel_v13000), &launch).stream, kStream);
  cudaLaunchConfig_t config{};
  config.stream = kStream;
  const cudaLaunchKernelExC_v11060_params extended{.config = &config, .func = nullptr, .args = nullptr};
  EXPECT_EQ(decoded(runtime(CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernelExC_v11060), &extended).stream, kStream);
}

TEST(ApiCall, TellsWhetherACopyBlocksAndWhereItGoes) {
  int from = 0, to = 0;
  const cudaMemcpyAsync_v3020_params async{
      .dst = &to, .src = &from, .count = 4, .kind = cudaMemcpyDeviceToHost, .stream = kStream};
  ApiCall call = decoded(runtime(CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyAsync_v3020), &async);
  EXPECT_EQ(call.kind, ApiKind::copy);
  EXPECT_FALSE(call.blocking);
  EXPECT_TRUE(call.to_host);
  EXPECT_EQ(call.source, &from);
  EXPECT_EQ(call.destination, &to);
  EXPECT_EQ(call.bytes, 4U);
  EXPECT_EQ(call.stream, kStream);
  const cudaMemcpy_v3020_params blocking{.dst = &to, .src = &from, .count = 4, .kind = cudaMemcpyHostToDevice};
  call = decoded(runtime(CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy_v3020), &blocking);
  EXPECT_TRUE(call.blocking);
  EXPECT_FALSE(call.to_host);
  EXPECT_TRUE(call.on_stream) << "on the default one";
  EXPECT_EQ(call.stream, nullptr);
  EXPECT_TRUE(decoded(driver(CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoH_v2), nullptr).blocking);
}

TEST(ApiCall, TellsWhatIsFreedAndHowMuchIsPinned) {
  int memory = 0;
  const cudaFree_v3020_params freed{.devPtr = &memory};
  ApiCall call = decoded(runtime(CUPTI_RUNTIME_TRACE_CBID_cudaFree_v3020), &freed);
  EXPECT_EQ(call.kind, ApiKind::free);
  EXPECT_EQ(call.destination, &memory);
  const cudaHostAlloc_v3020_params pinned{.pHost = nullptr, .size = 4096, .flags = 0};
  call = decoded(runtime(CUPTI_RUNTIME_TRACE_CBID_cudaHostAlloc_v3020), &pinned);
  EXPECT_EQ(call.kind, ApiKind::pinned_allocation);
  EXPECT_EQ(call.bytes, 4096U);
}

}  // namespace
}  // namespace pianola::api_call_test

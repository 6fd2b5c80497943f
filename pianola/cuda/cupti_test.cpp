#include <pianola/cuda/cupti.hpp>

#include <pianola/cuda/fake_cupti.hpp>
#include <pianola/cuda/gpu_test.hpp>

#include <cuda_runtime_api.h>
#include <cupti_driver_cbid.h>
#include <cupti_runtime_cbid.h>
#include <generated_cuda_runtime_api_meta.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace pianola::cupti_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const auto kStream = reinterpret_cast<CUstream>(std::uintptr_t{0x1000});

class CuptiSubscriptionTest : public ::testing::Test {
 protected:
  CuptiSubscription::Opening open() {
    return CuptiSubscription::open([this](const ApiCall& call) { names.emplace_back(call.name); }, &fake.table);
  }
  FakeCupti fake;
  std::vector<std::string> names;
};

TEST_F(CuptiSubscriptionTest, ShowsTheChosenCalls) {
  const auto opening = open();
  ASSERT_NE(opening.subscription, nullptr);
  EXPECT_EQ(opening.problem, "");
  fake.runtime_call(CUPTI_RUNTIME_TRACE_CBID_cudaDeviceSynchronize_v3020);
  fake.runtime_call(CUPTI_RUNTIME_TRACE_CBID_cudaGetDevice_v3020);
  fake.begin(CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_cuCtxSynchronize);
  fake.end(CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_cuCtxSynchronize);
  EXPECT_THAT(names, ElementsAre("cudaDeviceSynchronize", "cuCtxSynchronize"));
  EXPECT_EQ(fake.enabled.count({CUPTI_CB_DOMAIN_RUNTIME_API, CUPTI_RUNTIME_TRACE_CBID_cudaGetDevice_v3020}), 0U);
}

TEST_F(CuptiSubscriptionTest, ShowsACallOfTheRuntimeOnceThoughItCallsTheDriver) {
  const auto opening = open();
  const cudaStreamSynchronize_v3020_params parameters{.stream = kStream};
  fake.begin(CUPTI_CB_DOMAIN_RUNTIME_API, CUPTI_RUNTIME_TRACE_CBID_cudaStreamSynchronize_v3020, &parameters);
  fake.begin(CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_cuStreamSynchronize, &parameters);
  fake.end(CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_cuStreamSynchronize);
  fake.end(CUPTI_CB_DOMAIN_RUNTIME_API, CUPTI_RUNTIME_TRACE_CBID_cudaStreamSynchronize_v3020);
  EXPECT_THAT(names, ElementsAre("cudaStreamSynchronize"));
  fake.begin(CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_cuStreamSynchronize, &parameters);
  EXPECT_THAT(names, ElementsAre("cudaStreamSynchronize", "cuStreamSynchronize"));
}

TEST_F(CuptiSubscriptionTest, ShowsNoCallsOfTheHandler) {
  const auto opening = CuptiSubscription::open(
      [this](const ApiCall& call) {
        names.emplace_back(call.name);
        fake.runtime_call(CUPTI_RUNTIME_TRACE_CBID_cudaDeviceSynchronize_v3020);
      },
      &fake.table);
  fake.begin(CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_cuCtxSynchronize);
  EXPECT_THAT(names, ElementsAre("cuCtxSynchronize"));
}

TEST_F(CuptiSubscriptionTest, ForgetsCallsWhoseEndItDidNotSee) {
  {
    const auto opening = open();
    fake.begin(CUPTI_CB_DOMAIN_RUNTIME_API, CUPTI_RUNTIME_TRACE_CBID_cudaDeviceSynchronize_v3020);
  }
  const auto opening = open();
  fake.begin(CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_cuCtxSynchronize);
  EXPECT_THAT(names, ElementsAre("cudaDeviceSynchronize", "cuCtxSynchronize"));
}

TEST_F(CuptiSubscriptionTest, IsQuietAfterItsEnd) {
  CUpti_CallbackFunc late = nullptr;
  {
    const auto opening = open();
    late = fake.callback;
  }
  EXPECT_EQ(fake.callback, nullptr) << "unsubscribed";
  // A call that another thread was making when the subscription ended.
  CUpti_CallbackData data{};
  data.callbackSite = CUPTI_API_ENTER;
  late(nullptr, CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_cuCtxSynchronize, &data);
  EXPECT_THAT(names, IsEmpty());
}

TEST_F(CuptiSubscriptionTest, LetsTheHandlerFinishThoughItEnds) {
  auto opening = open();
  auto owned = std::make_shared<int>(7);
  const std::weak_ptr<int> witness = owned;
  int seen = 0;
  opening.subscription.reset();
  opening = CuptiSubscription::open(
      [&opening, &seen, held = std::move(owned)](const ApiCall&) {
        opening.subscription.reset();
        seen = *held;
      },
      &fake.table);
  fake.begin(CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_cuCtxSynchronize);
  EXPECT_EQ(seen, 7);
  EXPECT_TRUE(witness.expired()) << "the handler is gone with the call";
}

TEST_F(CuptiSubscriptionTest, IsRefusedWithAReason) {
  const auto first = open();
  const auto second = open();
  EXPECT_EQ(second.subscription, nullptr);
  EXPECT_THAT(second.problem, HasSubstr("another tool uses CUPTI"));
  fake.runtime_call(CUPTI_RUNTIME_TRACE_CBID_cudaDeviceSynchronize_v3020);
  EXPECT_THAT(names, ElementsAre("cudaDeviceSynchronize")) << "the first goes on";
  fake.refusal = CUPTI_ERROR_UNKNOWN;
  EXPECT_EQ(open().problem, "CUPTI refused (CUPTI_ERROR_OF_A_TEST)");
  EXPECT_THAT(CuptiSubscription::open([](const ApiCall&) {}, nullptr).problem, HasSubstr("no CUPTI library"));
}

/// The real one, on a real device.
class CuptiOnDevice : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    ASSERT_NE(Cupti::try_get(), nullptr);
  }
  CuptiSubscription::Opening open() {
    return CuptiSubscription::open([this](const ApiCall& call) {
      const std::lock_guard lock(mutex);
      calls.push_back(call);
    });
  }
  std::vector<std::string> names() {
    const std::lock_guard lock(mutex);
    std::vector<std::string> all;
    for (const ApiCall& call : calls) all.emplace_back(call.name);
    return all;
  }
  std::mutex mutex;
  std::vector<ApiCall> calls;
};

TEST_F(CuptiOnDevice, ShowsCallsOfTheDriverWithTheirStreams) {
  const auto opening = open();
  ASSERT_EQ(opening.problem, "");
  launch_add(stream, data, 1);
  check(driver->stream_synchronize(stream), "cuStreamSynchronize");
  check(driver->memset_d8_async(data, 0, 64, nullptr), "cuMemsetD8Async");
  ASSERT_THAT(names(), ElementsAre("cuLaunchKernel", "cuStreamSynchronize", "cuMemsetD8Async"));
  EXPECT_EQ(calls[0].stream, stream);
  EXPECT_EQ(calls[1].stream, stream);
  EXPECT_EQ(calls[2].stream, nullptr);
  CUcontext context = nullptr;
  check(driver->ctx_get_current(&context), "cuCtxGetCurrent");
  EXPECT_EQ(calls[0].context, context);
}

TEST_F(CuptiOnDevice, ShowsCallsOfTheRuntimeOnce) {
  const auto opening = open();
  ASSERT_EQ(opening.problem, "");
  void* host = nullptr;
  ASSERT_EQ(cudaMallocHost(&host, 64), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(host, reinterpret_cast<void*>(data), 64, cudaMemcpyDeviceToHost, stream), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreate(&event), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event, stream), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(nullptr, event, 0), cudaSuccess);
  ASSERT_EQ(cudaEventSynchronize(event), cudaSuccess);
  ASSERT_EQ(cudaEventQuery(event), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_THAT(names(),
              ElementsAre("cudaMallocHost", "cudaMemcpyAsync", "cudaStreamSynchronize", "cudaEventRecord",
                          "cudaStreamWaitEvent", "cudaEventSynchronize", "cudaEventQuery", "cudaDeviceSynchronize"));
  EXPECT_EQ(calls[3].event, event);
  EXPECT_EQ(calls[4].event, event);
  EXPECT_TRUE(calls[1].to_host);
  cudaEventDestroy(event);
  cudaFreeHost(host);
}

TEST_F(CuptiOnDevice, ShowsCallsOfOtherThreads) {
  const auto opening = open();
  ASSERT_EQ(opening.problem, "");
  std::thread([] { cudaDeviceSynchronize(); }).join();
  EXPECT_THAT(names(), ElementsAre("cudaDeviceSynchronize"));
}

TEST_F(CuptiOnDevice, IsQuietAfterItsEndAndCanBeginAgain) {
  for (int round = 0; round < 50; ++round) {
    calls.clear();
    {
      const auto opening = open();
      ASSERT_EQ(opening.problem, "") << round;
      EXPECT_EQ(open().subscription, nullptr) << "one at a time";
      check(driver->stream_synchronize(stream), "cuStreamSynchronize");
    }
    check(driver->stream_synchronize(stream), "cuStreamSynchronize");
    EXPECT_EQ(calls.size(), 1U) << round;
  }
}

TEST_F(CuptiOnDevice, ShowsLaunchesWhileTheStreamIsCaptured) {
  const auto opening = open();
  ASSERT_EQ(opening.problem, "");
  begin_capture();
  launch_add(stream, data, 1);
  const CUgraph graph = end_capture();
  check(driver->graph_destroy(graph), "cuGraphDestroy");
  ASSERT_THAT(names(), ElementsAre("cuLaunchKernel"));
  EXPECT_EQ(calls[0].stream, stream);
}

}  // namespace
}  // namespace pianola::cupti_test

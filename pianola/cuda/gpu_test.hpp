#pragma once
#include <pianola/cuda/driver.hpp>
#include <pianola/cuda/error_codes.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

namespace pianola {

/// Base of tests on a real device: a current context, a stream, and a kernel. Skipped where there is no device, but
/// failed where the environment promises one (PIANOLA_REQUIRE_CUDA=1).
class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    driver = Driver::try_get();
    if (driver == nullptr) {
      const char* required = std::getenv("PIANOLA_REQUIRE_CUDA");
      if (required != nullptr && std::string_view(required) == "1") {
        FAIL() << "PIANOLA_REQUIRE_CUDA=1, but there is no CUDA device";
      }
      GTEST_SKIP() << "no CUDA device";
    }
    CUcontext context = nullptr;  // Never released: making it takes long, and every test wants it.
    check(driver->device_primary_ctx_retain(&context, 0), "cuDevicePrimaryCtxRetain");
    check(driver->ctx_set_current(context), "cuCtxSetCurrent");
    check(driver->stream_create(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    check(driver->module_load_data(&module, kPtx), "cuModuleLoadData");
    check(driver->module_get_function(&add, module, "add_to"), "cuModuleGetFunction");
    check(driver->mem_alloc(&data, 64), "cuMemAlloc");
    fill(data, 64, 0);
  }

  void TearDown() override {
    if (driver == nullptr) return;
    if (stream != nullptr) driver->stream_synchronize(stream);
    if (data != 0) driver->mem_free(data);
    if (module != nullptr) driver->module_unload(module);
    if (stream != nullptr) driver->stream_destroy(stream);
  }

  /// Launches `add_to`, which adds `amount` to the uint32 at `address`, on a stream.
  void launch_add(CUstream on, CUdeviceptr address, std::uint32_t amount) {
    void* arguments[] = {&address, &amount};
    check(driver->launch_kernel(add, 1, 1, 1, 1, 1, 1, 0, on, arguments, nullptr), "cuLaunchKernel");
  }

  void fill(CUdeviceptr address, std::size_t bytes, unsigned char value) {
    check(driver->memset_d8_async(address, value, bytes, stream), "cuMemsetD8Async");
    check(driver->stream_synchronize(stream), "cuStreamSynchronize");
  }

  [[nodiscard]] std::uint32_t read(CUdeviceptr address) {
    std::uint32_t value = 0;
    check(driver->stream_synchronize(stream), "cuStreamSynchronize");
    check(driver->memcpy_dtoh(&value, address, sizeof value), "cuMemcpyDtoH");
    return value;
  }

  void begin_capture() {
    check(driver->stream_begin_capture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "cuStreamBeginCapture");
  }
  /// The captured graph, which the caller destroys.
  [[nodiscard]] CUgraph end_capture() {
    CUgraph graph = nullptr;
    check(driver->stream_end_capture(stream, &graph), "cuStreamEndCapture");
    return graph;
  }
  /// A captured graph of `kernels` kernels in a chain, each of which adds `amount` at `data`.
  [[nodiscard]] CUgraph chain(int kernels, std::uint32_t amount) {
    begin_capture();
    for (int i = 0; i < kernels; ++i) launch_add(stream, data, amount);
    return end_capture();
  }

  const Driver* driver = nullptr;
  CUstream stream = nullptr;
  CUfunction add = nullptr;
  CUdeviceptr data = 0;  ///< 64 bytes of zeros.

 private:
  static constexpr const char* kPtx = R"(
.version 7.0
.target sm_50
.address_size 64
.visible .entry add_to(.param .u64 address, .param .u32 amount)
{
  .reg .b32 %r<3>;
  .reg .b64 %rd<3>;
  ld.param.u64 %rd1, [address];
  ld.param.u32 %r1, [amount];
  cvta.to.global.u64 %rd2, %rd1;
  atom.global.add.u32 %r2, [%rd2], %r1;
  ret;
}
)";

  CUmodule module = nullptr;
};

}  // namespace pianola

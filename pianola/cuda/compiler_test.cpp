#include <pianola/cuda/compiler.hpp>

#include <pianola/core/error.hpp>
#include <pianola/cuda/error_codes.hpp>
#include <pianola/cuda/gpu_test.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>

namespace pianola::compiler_test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr const char* kAddCode = R"cuda(
extern "C" __global__ void add(int* counter) { *counter += STEP; }
)cuda";

class CompilerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_compiler()) GTEST_SKIP() << "no NVRTC";
  }
  static std::string failure_of(const KernelSource& source) {
    try {
      (void)compile(source, "sm_90");
    } catch (const DeviceError& error) {
      return error.what();
    }
    return "no failure";
  }
};

TEST_F(CompilerTest, CompilesForADeviceThatIsNotHere) {
  EXPECT_THAT(compile({.code = kAddCode, .function = "add", .options = {"-DSTEP=1"}}, "sm_90").binary,
              StartsWith("\x7f"
                         "ELF"));
}

TEST_F(CompilerTest, KnowsWhichDevicesItKnows) {
  EXPECT_TRUE(can_compile_for(90));
  EXPECT_FALSE(can_compile_for(9999));
}

TEST_F(CompilerTest, SaysWhatIsWrongWithTheCode) {
  EXPECT_THAT(failure_of({.code = kAddCode, .function = "add", .options = {}}),
              AllOf(HasSubstr("NVRTC could not compile add: "), HasSubstr("identifier \"STEP\" is undefined")));
}

class LoadedKernelTest : public GpuTest {};

TEST_F(LoadedKernelTest, RunsOnTheCurrentDevice) {
  if (!has_compiler()) GTEST_SKIP() << "no NVRTC";
  const CUfunction kernel = load_kernel({.code = kAddCode, .function = "add", .options = {"-DSTEP=3"}});
  CUdeviceptr counter = 0;
  check(driver->mem_alloc(&counter, sizeof(int)), "cuMemAlloc");
  check(driver->memset_d8_async(counter, 0, sizeof(int), nullptr), "cuMemsetD8Async");
  void* arguments[] = {&counter};
  launch_kernel(kernel, 1, 1, nullptr, arguments);
  std::thread([&] { launch_kernel(kernel, 1, 1, nullptr, arguments); }).join();  // which has not used the device
  int value = 0;
  check(driver->memcpy_dtoh(&value, counter, sizeof value), "cuMemcpyDtoH");
  EXPECT_EQ(value, 6);
  check(driver->mem_free(counter), "cuMemFree");
}

}  // namespace
}  // namespace pianola::compiler_test

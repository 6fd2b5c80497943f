#include <pianola/cuda/memory_account.hpp>

#include <pianola/core/error.hpp>
#include <pianola/cuda/fake_driver.hpp>
#include <pianola/cuda/gpu_test.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace pianola::memory_account_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(MemoryAccount, CountsWhatWasTakenAndGivenBack) {
  FakeDriver fake;
  fake.free_bytes = 1000;
  fake.total_bytes = 4000;
  const MemoryAccount account(fake.table());
  EXPECT_EQ(account.taken_bytes(), 0);
  fake.free_bytes = 300;
  EXPECT_EQ(account.taken_bytes(), 700);
  fake.free_bytes = 1500;
  EXPECT_EQ(account.taken_bytes(), -500);
  EXPECT_EQ(device_memory(fake.table()).total_bytes, 4000U);
}

TEST(MemoryAccount, NeedsAContext) {
  FakeDriver fake;
  fake.failures["cuMemGetInfo"] = CUDA_ERROR_INVALID_CONTEXT;
  EXPECT_THAT([&] { (void)MemoryAccount(fake.table()); },
              ThrowsMessage<DeviceError>(AllOf(HasSubstr("no current CUDA context"), HasSubstr("fix:"))));
}

class GpuMemoryAccount : public GpuTest {};

TEST_F(GpuMemoryAccount, SeesAnAllocationComeAndGo) {
  constexpr std::int64_t kBytes = 256 << 20;
  bool saw_both = false;
  for (int tries = 0; tries < 20 && !saw_both; ++tries) {  // other processes take and give back, too
    const MemoryAccount account;
    CUdeviceptr block = 0;
    check(driver->mem_alloc(&block, kBytes), "cuMemAlloc");
    saw_both = account.taken_bytes() >= kBytes / 2;
    check(driver->mem_free(block), "cuMemFree");
    saw_both = saw_both && account.taken_bytes() < kBytes / 2;
  }
  EXPECT_TRUE(saw_both);
}

}  // namespace
}  // namespace pianola::memory_account_test

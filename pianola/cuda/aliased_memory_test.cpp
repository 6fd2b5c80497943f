#include <pianola/cuda/aliased_memory.hpp>

#include <pianola/core/out_of_memory_error.hpp>
#include <pianola/cuda/fake_driver.hpp>
#include <pianola/cuda/gpu_test.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>

namespace pianola::aliased_memory_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr std::size_t kUnit = FakeDriver::kMappingUnit;

TEST(AliasedMemoryTest, HasManyAddressesForAUnitOfMemory) {
  FakeDriver fake;
  {
    const AliasedMemory memory(0, 100 * kUnit - 1, fake.table());
    EXPECT_EQ(memory.memory_bytes(), kUnit);
    EXPECT_EQ(memory.bytes(), 100 * kUnit);
    EXPECT_EQ(fake.reserved, 100 * kUnit);
    EXPECT_EQ(fake.mapped, 100 * kUnit);
    EXPECT_EQ(fake.handles, 0U) << "what is mapped holds it";
  }
  EXPECT_EQ(fake.mapped + fake.reserved + fake.handles, 0U);
}

TEST(AliasedMemoryTest, OfAnyBytesIsMappedAtFewAddresses) {
  FakeDriver fake;
  const std::size_t bytes = std::size_t{300} << 30U;
  const AliasedMemory memory(0, bytes, fake.table());
  EXPECT_GE(memory.bytes(), bytes);
  EXPECT_LE(memory.bytes() / memory.memory_bytes(), AliasedMemory::kMostMappings);
  EXPECT_LE(memory.memory_bytes(), bytes / AliasedMemory::kMostMappings + kUnit);
}

TEST(AliasedMemoryTest, ACallThatFailsLeavesNothingBehind) {
  for (const char* const call : {"cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess"}) {
    SCOPED_TRACE(call);
    FakeDriver fake;
    fake.failures[call] = CUDA_ERROR_OUT_OF_MEMORY;
    EXPECT_THAT([&] { AliasedMemory(0, 8 * kUnit, fake.table()); },
                ThrowsMessage<OutOfMemoryError>(HasSubstr("the device has no")));
    EXPECT_EQ(fake.mapped + fake.reserved + fake.handles, 0U);
  }
}

class GpuAliasedMemory : public GpuTest {};

TEST_F(GpuAliasedMemory, IsMemoryAtAllItsAddresses) {
  const AliasedMemory memory(0, std::size_t{4} << 30U);
  EXPECT_LE(memory.memory_bytes(), std::size_t{8} << 20U);
  const auto last = static_cast<CUdeviceptr>(memory.address() + memory.bytes() - 4);
  fill(last, 4, 1);
  EXPECT_EQ(read(last), 0x01010101U);
  const auto first = static_cast<CUdeviceptr>(memory.address() + memory.memory_bytes() - 4);
  EXPECT_EQ(read(first), 0x01010101U) << "the same bytes lie there";
}

}  // namespace
}  // namespace pianola::aliased_memory_test

#include <pianola/cuda/mapped_memory.hpp>

#include <pianola/core/out_of_memory_error.hpp>
#include <pianola/cuda/fake_driver.hpp>
#include <pianola/cuda/gpu_test.hpp>
#include <pianola/cuda/memory_account.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace pianola::mapped_memory_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(MappedMemoryTest, KeepsItsAddressesWhileItsMemoryComesAndGoes) {
  FakeDriver fake;
  {
    MappedMemory memory(0, 5 << 20, fake.table());
    const std::uintptr_t address = memory.address();
    EXPECT_EQ(memory.bytes(), 6U << 20U);
    EXPECT_EQ(fake.mapped, memory.bytes());
    memory.map();
    memory.unmap();
    memory.unmap();
    EXPECT_EQ(fake.mapped, 0U);
    EXPECT_EQ(fake.reserved, memory.bytes());
    memory.map();
    EXPECT_EQ(memory.address(), address);
    EXPECT_EQ(fake.handles, 0U) << "the mapping holds the memory";
  }
  EXPECT_EQ(fake.mapped + fake.reserved + fake.handles, 0U);
}

TEST(MappedMemoryTest, ACallThatFailsLeavesNothingBehind) {
  for (const char* const call : {"cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess"}) {
    SCOPED_TRACE(call);
    FakeDriver fake;
    fake.failures[call] = CUDA_ERROR_INVALID_VALUE;
    EXPECT_THAT([&] { MappedMemory(0, 1, fake.table()); }, ThrowsMessage<DeviceError>(HasSubstr(call)));
    EXPECT_EQ(fake.mapped + fake.reserved + fake.handles, 0U);
  }
}

TEST(MappedMemoryTest, WithoutRoomItStaysUnmapped) {
  FakeDriver fake;
  MappedMemory memory(0, 1, fake.table());
  memory.unmap();
  fake.failures["cuMemCreate"] = CUDA_ERROR_OUT_OF_MEMORY;
  EXPECT_THAT([&] { memory.map(); },
              ThrowsMessage<OutOfMemoryError>(HasSubstr("the device has no 2097152 bytes left")));
  EXPECT_FALSE(memory.is_mapped());
  fake.failures.clear();
  memory.map();
  EXPECT_TRUE(memory.is_mapped());
}

TEST(MappedMemoryTest, PiecesOfReservedAddressesLieBehindEachOther) {
  FakeDriver fake;
  const std::size_t unit = FakeDriver::kMappingUnit;
  auto addresses = std::make_shared<const ReservedAddresses>(0, 3 * unit - 1, fake.table());
  EXPECT_EQ(fake.reserved, 3 * unit);
  EXPECT_EQ(fake.mapped, 0U);
  {
    MappedMemory first(addresses, 0, unit - 1);
    const MappedMemory second(addresses, first.bytes(), 2 * unit);
    EXPECT_EQ(first.address(), addresses->begin());
    EXPECT_EQ(second.address(), first.address() + first.bytes());
    EXPECT_EQ(fake.mapped, 3 * unit);
    first.unmap();
    EXPECT_EQ(fake.mapped, 2 * unit) << "each by itself";
    addresses.reset();
    EXPECT_EQ(fake.reserved, 3 * unit) << "the pieces hold the addresses";
  }
  EXPECT_EQ(fake.mapped + fake.reserved + fake.handles, 0U);
}

TEST(MappedMemoryTest, APieceThatFailsLeavesTheOthersAndItsAddresses) {
  FakeDriver fake;
  const std::size_t unit = FakeDriver::kMappingUnit;
  const auto addresses = std::make_shared<const ReservedAddresses>(0, 2 * unit, fake.table());
  const MappedMemory first(addresses, 0, unit);
  for (const char* const call : {"cuMemCreate", "cuMemMap", "cuMemSetAccess"}) {
    SCOPED_TRACE(call);
    fake.failures[call] = CUDA_ERROR_OUT_OF_MEMORY;
    EXPECT_THROW(MappedMemory(addresses, unit, unit), OutOfMemoryError);
    EXPECT_EQ(fake.mapped, unit);
    EXPECT_EQ(fake.handles, 0U);
    fake.failures.clear();
  }
  EXPECT_THAT(
      [&] { MappedMemory(addresses, unit, 2 * unit); },
      ThrowsMessage<OutOfMemoryError>(HasSubstr("4194304 bytes do not fit behind the first 2097152 of 4194304")));
  const MappedMemory second(addresses, unit, unit);
  EXPECT_EQ(fake.mapped, 2 * unit);
}

class GpuMappedMemory : public GpuTest {};

TEST_F(GpuMappedMemory, GivesItsMemoryBack) {
  MappedMemory memory(0, 256 << 20);
  bool gave_all = false;
  for (int tries = 0; tries < 20 && !gave_all; ++tries) {  // other processes take and give back, too
    const MemoryAccount account;
    memory.unmap();
    gave_all = account.taken_bytes() <= -(256 << 20);
    memory.map();
  }
  EXPECT_TRUE(gave_all);
  ASSERT_EQ(driver->memset_d8_async(memory.address(), 7, memory.bytes(), nullptr), CUDA_SUCCESS);
  unsigned char last = 0;
  ASSERT_EQ(driver->memcpy_dtoh(&last, memory.address() + memory.bytes() - 1, 1), CUDA_SUCCESS);
  EXPECT_EQ(last, 7);
}

TEST_F(GpuMappedMemory, WorkReachesOverTheEndOfAPiece) {
  const auto addresses = std::make_shared<const ReservedAddresses>(0, std::size_t{1} << 30U);
  const MappedMemory first(addresses, 0, 4 << 20);
  const MappedMemory second(addresses, first.bytes(), 4 << 20);
  const std::size_t bytes = first.bytes() + second.bytes();
  ASSERT_EQ(driver->memset_d8_async(first.address(), 5, bytes, nullptr), CUDA_SUCCESS);
  std::vector<unsigned char> all(bytes);
  ASSERT_EQ(driver->memcpy_dtoh(all.data(), first.address(), bytes), CUDA_SUCCESS);
  EXPECT_EQ(std::ranges::count(all, 5), static_cast<std::ptrdiff_t>(bytes));
}

}  // namespace
}  // namespace pianola::mapped_memory_test

#include <pianola/graph/account/memory_left.hpp>

#include <pianola/graph/testing/device_test.hpp>

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

namespace pianola::testing::memory_left_test {
namespace {

class MemoryLeftTest : public DeviceTest {};
PIANOLA_ON_EVERY_DEVICE(MemoryLeftTest);

TEST_P(MemoryLeftTest, IsKnownOfAGpuAndHasWhatTorchHoldsUnused) {
  constexpr std::int64_t kBytes = 64LL << 20U;
  at::Tensor block = at::empty({kBytes}, at::TensorOptions(device()).dtype(at::kByte));
  const auto before = memory_left(device());
  ASSERT_EQ(before.has_value(), on_cuda());
  if (!before) return;
  EXPECT_GT(before->of_driver, 0U);
  block.reset();
  const auto after = memory_left(device());
  ASSERT_TRUE(after);
  EXPECT_GE(after->cached, before->cached + kBytes) << "the block is free, and torch's still";
  EXPECT_GE(after->cached, after->returnable);
}

}  // namespace
}  // namespace pianola::testing::memory_left_test

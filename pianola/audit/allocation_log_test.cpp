#include <pianola/audit/allocation_log.hpp>

#include <pianola/trace/testing/device_test.hpp>

#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>

#include <optional>
#include <thread>

namespace pianola::allocation_log_test {
namespace {

using auditing::AllocationLog;

TEST(AllocationLog, KnowsWhatThisThreadWasGivenMeanwhile) {
  const at::Tensor before = at::empty({16});
  at::Tensor other;
  std::optional<AllocationLog> log(std::in_place);
  const at::Tensor during = at::empty({16});
  std::thread([&] { other = at::empty({16}); }).join();
  EXPECT_TRUE(log->contains(during.data_ptr()));
  EXPECT_FALSE(log->contains(before.data_ptr()));
  EXPECT_FALSE(log->contains(other.data_ptr()));
}

TEST(AllocationLog, LeavesTheAllocatorAsItWas) {
  c10::Allocator* const before = c10::GetCPUAllocator();
  at::Tensor kept;
  {
    const AllocationLog outer;
    {
      const AllocationLog inner;
      kept = at::empty({16});
    }
    EXPECT_NE(c10::GetCPUAllocator(), before);
  }
  EXPECT_EQ(c10::GetCPUAllocator(), before);
  kept.resize_({4096}).fill_(2);  // by the allocator that made it
  EXPECT_EQ(kept.sum().item<float>(), 8192);
}

TEST(AllocationLog, TheInnerOneDoesNotHideTheOuterOne) {
  AllocationLog outer;
  { const AllocationLog inner; }
  const at::Tensor after = at::empty({16});
  EXPECT_TRUE(outer.contains(after.data_ptr()));
}

}  // namespace
}  // namespace pianola::allocation_log_test

#include <pianola/trace/allocation_log.hpp>

#include <pianola/trace/testing/device_test.hpp>

#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>

#include <array>
#include <cstddef>
#include <optional>
#include <thread>

namespace pianola::allocation_log_test {
namespace {

using trace::AllocationLog;

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
  std::optional<AllocationLog> inner(std::in_place);
  const at::Tensor meanwhile = at::empty({16});
  inner.reset();
  EXPECT_TRUE(outer.contains(meanwhile.data_ptr()));
  const at::Tensor after = at::empty({16});
  EXPECT_TRUE(outer.contains(after.data_ptr()));
}

TEST(AllocationLog, OneThatComesAfterAnotherAllocatorSeesWhatThatHandsOut) {
  c10::Allocator* const before = c10::GetCPUAllocator();
  {
    const AllocationLog outer;
    c10::Allocator* const forwarding = c10::GetCPUAllocator();
    c10::SetCPUAllocator(before);  // as a program does that has put in one of its own for a while
    AllocationLog inner;
    const at::Tensor made = at::empty({16});
    EXPECT_TRUE(inner.contains(made.data_ptr()));
    c10::SetCPUAllocator(forwarding);
    AllocationLog last;
    const at::Tensor after = at::empty({16});
    EXPECT_TRUE(last.contains(after.data_ptr()));
  }
  EXPECT_EQ(c10::GetCPUAllocator(), before);
}

TEST(AllocationLog, TheOuterOneMayEndFirst) {
  std::optional<AllocationLog> outer(std::in_place);
  AllocationLog inner;
  outer.reset();
  const at::Tensor after = at::empty({16});
  EXPECT_TRUE(inner.contains(after.data_ptr()));
}

TEST(AllocationLog, DoesNotCountWhatIsHandedOutWhileItIsPaused) {
  AllocationLog log(AllocationLog::Of::cpu);
  const at::Tensor before = at::empty({16});
  log.pause(true);
  const at::Tensor meanwhile = at::empty({16});
  log.pause(false);
  const at::Tensor after = at::empty({16});
  EXPECT_TRUE(log.contains(before.data_ptr()));
  EXPECT_FALSE(log.contains(meanwhile.data_ptr()));
  EXPECT_TRUE(log.contains(after.data_ptr()));
}

// Hands out the same block again and again.
class OneBlock final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t /*bytes*/) override { return {block_.data(), c10::Device(c10::kCPU)}; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  alignas(64) std::array<std::byte, 4096> block_ = {};
};

TEST(AllocationLog, ABlockThatIsHandedOutOnceMoreIsTheLastOnes) {
  c10::Allocator* const before = c10::GetCPUAllocator();
  OneBlock allocator;
  c10::SetCPUAllocator(&allocator);
  {
    AllocationLog log(AllocationLog::Of::cpu);
    const void* const address = at::empty({16}).data_ptr();
    EXPECT_TRUE(log.contains(address));
    log.pause(true);
    EXPECT_EQ(at::empty({16}).data_ptr(), address);
    EXPECT_FALSE(log.contains(address));
  }
  c10::SetCPUAllocator(before);
}

}  // namespace
}  // namespace pianola::allocation_log_test

#include <pianola/trace/collective_work.hpp>

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <pthread.h>

#include <thread>
#include <vector>

namespace pianola::trace {
namespace {

// NCCL's all_reduce without async_op: its stream has been waited for already.
TEST(CollectiveWork, ACollectiveThatIsNotAsynchronousReturnsNone) {
  const std::vector<c10::IValue> outputs{at::ones({1}), c10::IValue(c10::intrusive_ptr<c10d::Work>())};
  EXPECT_THAT(works_of(outputs), ::testing::IsEmpty());
  EXPECT_TRUE(waits_until_done(outputs));
}

TEST(CollectiveWork, AThreadOfAProcessGroupIsKnownByItsName) {
  const auto belongs = [](const char* name) {
    bool answer = false;
    std::thread([&] {
      pthread_setname_np(pthread_self(), name);
      answer = belongs_to_a_process_group();
    }).join();
    return answer;
  };
  EXPECT_TRUE(belongs("pt_gloo_runloop"));
  EXPECT_FALSE(belongs("pt_autograd_0"));
}

TEST(CollectiveBuffers, AreReadByWhateverLooksAtTheirMemory) {
  const at::Tensor buffer = at::ones({2, 2}), other = at::ones({2, 2});
  const auto reads = [](const CollectiveBuffers& buffers, const at::Tensor& input) {
    return buffers.are_read_by(std::vector<c10::IValue>{input});
  };
  CollectiveBuffers buffers;
  EXPECT_FALSE(reads(buffers, buffer));
  buffers.note(std::vector<c10::IValue>{buffer});
  EXPECT_TRUE(reads(buffers, buffer[1]));
  EXPECT_FALSE(reads(buffers, other));
}

}  // namespace
}  // namespace pianola::trace

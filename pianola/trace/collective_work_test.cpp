#include <pianola/trace/collective_work.hpp>

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace pianola::trace {
namespace {

// NCCL's all_reduce without async_op: its stream has been waited for already.
TEST(CollectiveWork, ACollectiveThatIsNotAsynchronousReturnsNone) {
  const std::vector<c10::IValue> outputs{at::ones({1}), c10::IValue(c10::intrusive_ptr<c10d::Work>())};
  EXPECT_THAT(works_of(outputs), ::testing::IsEmpty());
  EXPECT_TRUE(waits_until_done(outputs));
}

}  // namespace
}  // namespace pianola::trace

#include <pianola/trace/real_leaf.hpp>

#include <pianola/trace/testing/device_test.hpp>
#include <pianola/trace/testing/unpacked.hpp>

#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>

namespace pianola::trace::real_leaf_test {
namespace {

using pianola::testing::SavedWithHooks;

class RealLeafTest : public pianola::testing::DeviceTest {};
PIANOLA_ON_EVERY_DEVICE(RealLeafTest);

TEST_P(RealLeafTest, WhatAHookGivesBackStandsForTheLeaf) {
  const at::Tensor leaf = randn({3, 4}).requires_grad_();
  const SavedWithHooks saved(leaf);
  const at::Tensor unpacked = saved.unpack();
  ASSERT_FALSE(unpacked.is_same(leaf));
  ASSERT_TRUE(unpacked.is_leaf() && unpacked.requires_grad()) << "it looks like a parameter";
  EXPECT_TRUE(real_leaf(unpacked).is_same(leaf));
  EXPECT_TRUE(real_leaf(leaf).is_same(leaf));
}

TEST_P(RealLeafTest, OtherMemoryIsItself) {
  const at::Tensor leaf = randn({3, 4}).requires_grad_();
  const SavedWithHooks saved(leaf, [](const at::Tensor& tensor) { return tensor.detach().clone(); });
  const at::Tensor unpacked = saved.unpack();
  EXPECT_TRUE(real_leaf(unpacked).is_same(unpacked));
}

TEST_P(RealLeafTest, TensorsThatAreNoLeavesAreThemselves) {
  const at::Tensor plain = randn({3, 4}), result = at::relu(randn({3, 4}).requires_grad_());
  EXPECT_TRUE(real_leaf(plain).is_same(plain));
  EXPECT_TRUE(real_leaf(result).is_same(result));
}

}  // namespace
}  // namespace pianola::trace::real_leaf_test

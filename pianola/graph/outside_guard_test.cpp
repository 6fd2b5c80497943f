#include <pianola/graph/outside_guard.hpp>
#include <pianola/graph/private_tensors.hpp>

#include <gtest/gtest.h>

#include <ATen/ops/zeros.h>

#include <optional>
#include <vector>

namespace pianola::graph::outside_guard_test {
namespace {

// As an optimizer has it.
struct Owner {
  std::vector<at::Tensor> state = {at::zeros({2}), at::zeros({3})};
  PrivateTensors own{state};
};

TEST(OutsideGuardTest, LooksAtEachTensorThatNobodyDeclaredHisOwn) {
  const std::vector<at::Tensor> held = {at::zeros({2}), at::zeros({3})};
  const OutsideGuard guard(held);
  EXPECT_EQ(guard.size(), 2U);
  EXPECT_TRUE(guard.intact());
  held[1].unsafeGetTensorImpl()->set_storage_keep_dtype(at::zeros({3}).storage());
  EXPECT_FALSE(guard.intact());
  EXPECT_EQ(guard.difference(),
            "a Float tensor of shape [3] that the function reads: its memory was replaced (.data = ..., set_() or a "
            "resized storage)");
}

TEST(OutsideGuardTest, NoticesAShapeOrStridesThatChangeInPlace) {
  const at::Tensor square = at::zeros({3, 3}), row = at::zeros({4});
  const std::vector<NamedTensor> names = {{"square", square}};
  const OutsideGuard guard({square, row}, names);
  square.t_();
  EXPECT_FALSE(guard.intact());
  EXPECT_EQ(guard.difference(),
            "a Float tensor of shape [3, 3] that the function reads: its shape or strides were changed in place (t_(), "
            "resize_() or .data = ...)");
  EXPECT_EQ(guard.offence().what,
            "'square', a Float tensor of shape [3, 3]: its shape or strides were changed in place (t_(), resize_() or "
            ".data = ...); nothing was launched");
  EXPECT_EQ(guard.offence().rule, "PG502");
  square.t_();
  EXPECT_TRUE(guard.intact());
  row.resize_({2});
  EXPECT_FALSE(guard.intact());
}

TEST(OutsideGuardTest, NoticesAViewThatMovesWithinItsBuffer) {
  const at::Tensor buffer = at::zeros({2, 3}), row = buffer[0].detach();
  const OutsideGuard guard({row});
  EXPECT_TRUE(guard.intact());
  row.set_data(buffer[1]);
  EXPECT_FALSE(guard.intact());
  EXPECT_EQ(guard.offence().rule, "PG401");
}

TEST(OutsideGuardTest, AsksForTheOwnerOfPrivateTensorsInsteadOfEach) {
  std::optional<Owner> owner(std::in_place);
  const at::Tensor other = at::zeros({4});
  const OutsideGuard guard({owner->state[0], other, owner->state[1]});
  EXPECT_EQ(guard.size(), 1U);
  EXPECT_TRUE(guard.intact());
  EXPECT_EQ(guard.difference(), "");
  const at::Tensor held = owner->state[0];  // which does not replace the optimizer
  owner.reset();
  EXPECT_FALSE(guard.intact());
  EXPECT_EQ(guard.difference(), "the optimizer that the function uses is gone");
  EXPECT_EQ(guard.offence().what, "the optimizer whose state the graph uses is gone; nothing was launched");
  EXPECT_EQ(guard.offence().rule, "PG404");
}

TEST(OutsideGuardTest, PrivateTensorsMoveWithTheirOwner) {
  Owner first;
  const OutsideGuard guard({first.state[0]});
  const Owner second = std::move(first);
  EXPECT_TRUE(guard.intact());
  EXPECT_FALSE(PrivateTensors::owner_of(second.state[1]).expired());
}

TEST(OutsideGuardTest, ATensorThatTakesThePlaceOfAPrivateOneIsNotTakenForIt) {
  at::Tensor tensor = at::zeros({2});
  {
    const PrivateTensors own(std::vector<at::Tensor>{tensor});
    EXPECT_FALSE(PrivateTensors::owner_of(tensor).expired());
  }
  EXPECT_TRUE(PrivateTensors::owner_of(tensor).expired());
  EXPECT_EQ(OutsideGuard({tensor}).size(), 1U);
}

}  // namespace
}  // namespace pianola::graph::outside_guard_test

#include <pianola/training/delivery.hpp>

#include <pianola/graph/graph.hpp>
#include <pianola/training/testing/static_inputs_fixture.hpp>

#include <ATen/TensorOperators.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>
#include <vector>

namespace pianola::delivery_test {
namespace {

using training::Delivery;

class DeliveryTest : public testing::StaticInputsFixture {
 protected:
  static std::vector<at::Tensor> batch(std::uint64_t seed) {
    return {floats({4, 3}, seed), numbers({7}, seed + 1), floats({2, 5}, seed + 2).t()};
  }
  std::vector<at::Tensor> there(std::uint64_t seed = 0) const {
    std::vector<at::Tensor> tensors;
    for (const at::Tensor& tensor : batch(seed)) tensors.push_back(tensor.to(device()));
    return tensors;
  }
};
PIANOLA_ON_EVERY_DEVICE(DeliveryTest);

TEST_P(DeliveryTest, BringsEachCallsInputsToTensorsThatStay) {
  Delivery delivery(there());
  std::vector<at::Tensor> first;
  for (std::uint64_t call = 0; call < 6; ++call) {
    const std::vector<at::Tensor> inputs = batch(call);
    ASSERT_TRUE(delivery.takes(inputs));
    const std::optional<Delivery::Arrived> arrived = delivery.bring(inputs);
    ASSERT_TRUE(arrived);
    expect_values(arrived->tensors(), batch(call));
    if (first.empty()) first = arrived->tensors();
    for (std::size_t i = 0; i < first.size(); ++i) {
      EXPECT_EQ(arrived->tensors()[i].data_ptr(), first[i].data_ptr());
      EXPECT_EQ(arrived->tensors()[i].device(), device());
      EXPECT_EQ(arrived->tensors()[i].strides(), inputs[i].strides());
    }
  }
}

TEST_P(DeliveryTest, HasReadTheInputsWhenItReturns) {
  Delivery delivery(there());
  for (std::uint64_t call = 0; call < 6; ++call) {
    std::vector<at::Tensor> inputs = batch(call);
    if (device().is_cuda()) {
      for (at::Tensor& input : inputs) input = input.pin_memory();
    }
    ASSERT_TRUE(delivery.takes(inputs));
    const auto arrived = delivery.bring(inputs);
    for (const at::Tensor& input : inputs) input.zero_();
    expect_values(arrived->tensors(), batch(call));
  }
}

TEST_P(DeliveryTest, TakesOnlyWhatLiesAsItsInputsDo) {
  const Delivery delivery(there());
  std::vector<at::Tensor> inputs = batch(1);
  EXPECT_FALSE(delivery.takes(std::vector<at::Tensor>(inputs.begin(), inputs.begin() + 2)));
  inputs[0] = floats({4, 4}, 1);
  EXPECT_FALSE(delivery.takes(inputs)) << "another shape";
  inputs[0] = numbers({4, 3}, 1);
  EXPECT_FALSE(delivery.takes(inputs)) << "another dtype";
  inputs[0] = floats({3, 4}, 1).t();
  EXPECT_FALSE(delivery.takes(inputs)) << "other strides";
  inputs[0] = floats({4, 3}, 1).requires_grad_();
  EXPECT_FALSE(delivery.takes(inputs)) << "with a gradient";
  if (!device().is_cpu()) {
    EXPECT_FALSE(delivery.takes(there())) << "there already";
  }
  EXPECT_TRUE(delivery.takes(batch(2)));
}

TEST_P(DeliveryTest, BringsValuesNotBytes) {
  Delivery delivery(there());
  std::vector<at::Tensor> inputs = batch(1);
  inputs[0] = inputs[0]._neg_view();
  ASSERT_TRUE(delivery.takes(inputs));
  const auto arrived = delivery.bring(inputs);
  EXPECT_TRUE(testing::same(arrived->tensors()[0].cpu(), -batch(1)[0]));
}

TEST_P(DeliveryTest, ServesOneCallAtATime) {
  Delivery delivery(there());
  std::optional<Delivery::Arrived> arrived = delivery.bring(batch(1));
  ASSERT_TRUE(arrived);
  EXPECT_FALSE(delivery.bring(batch(2)));
  expect_values(arrived->tensors(), batch(1));
  arrived.reset();
  EXPECT_TRUE(delivery.bring(batch(2)));
}

TEST_P(DeliveryTest, LeavesCapturesAlone) {
  Delivery delivery(there());
  Graph graph(device());
  bool was_served = true;
  const std::vector<at::Tensor> inputs = batch(1);
  const at::Tensor x = there(1).front();
  at::Tensor result;
  graph.capture([&] {
    was_served = delivery.bring(inputs).has_value();
    result = x + 1;
  });
  EXPECT_FALSE(was_served);
  EXPECT_TRUE(delivery.bring(inputs));
}

TEST_P(DeliveryTest, HasTensorsOfItsOwnForEachStream) {
  if (device().is_cpu()) GTEST_SKIP() << "the CPU has one stream";
  Delivery delivery(there());
  const auto address = [&] { return delivery.bring(batch(1))->tensors().front().data_ptr(); };
  void* const here = address();
  const c10::impl::VirtualGuardImpl guard(device().type());
  for (int i = 0; i < 8; ++i) {  // more than it keeps
    const c10::StreamGuard on_another(guard.getStreamFromGlobalPool(device()));
    EXPECT_NE(address(), here);
    const auto arrived = delivery.bring(batch(2));
    expect_values(arrived->tensors(), batch(2));
  }
}

TEST_P(DeliveryTest, KnowsWhoLooksAtItsMemory) {
  Delivery delivery(there());
  const auto arrived = delivery.bring(batch(1));
  EXPECT_TRUE(arrived->holds(arrived->tensors()[2].t()));
  EXPECT_FALSE(arrived->holds(arrived->tensors()[2].clone()));
}

}  // namespace
}  // namespace pianola::delivery_test

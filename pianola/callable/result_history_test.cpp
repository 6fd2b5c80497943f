// See Note [What a history holds].
#include <pianola/callable/result_history.hpp>
#include <pianola/callable/testing/twins.hpp>

#include <ATen/SequenceNumber.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstddef>
#include <functional>
#include <utility>

namespace pianola::result_history_test {
namespace {

using callable::ResultHistory;

class ResultHistoryTest : public testing::CallableTest {
 protected:
  void SetUp() override {
    CallableTest::SetUp();
    if (!IsSkipped() && !HasFatalFailure()) weight_ = randn({12}, 7).requires_grad_();
  }
  using Run = std::function<at::Tensor(const at::Tensor& x)>;

  // What one run returned, and its history.
  struct Made {
    at::Tensor x, result;
    ResultHistory history;
  };
  static Made run(const Run& function) {
    Made made{.x = randn({8, 12}, 1), .result = {}, .history = {}};
    const trace::OpStream stream({});
    const std::uint64_t began = at::sequence_number::peek();
    made.result = function(made.x);
    made.history = ResultHistory({made.result}, began, stream.released_nodes());
    return made;
  }
  static at::Tensor squares(const at::Tensor& x) { return x.relu().pow(2).sum(); }

  at::Tensor weight_;
};
PIANOLA_ON_EVERY_DEVICE(ResultHistoryTest);

TEST_P(ResultHistoryTest, HoldsNothingOnceItsBackwardPassHasRun) {
  const Made made = run([&](const at::Tensor& x) {
    at::Tensor loss = squares(x * weight_);
    loss.backward();
    return loss;
  });
  ASSERT_TRUE(made.result.grad_fn());
  EXPECT_FALSE(made.history.may_hold_tensors());
  EXPECT_EQ(made.history.references_to(made.x.storage()), 0U);
}

TEST_P(ResultHistoryTest, MayHoldTensorsWhileSomeOfItHasNotLetGo) {
  const std::vector<std::pair<const char*, Run>> ways = {
      {"no backward pass", [&](const at::Tensor& x) { return squares(x * weight_); }},
      {"one that retains the graph",
       [&](const at::Tensor& x) {
         at::Tensor loss = squares(x * weight_);
         loss.backward({}, /*retain_graph=*/true);
         return loss;
       }},
      {"one of another part",
       [&](const at::Tensor& x) {
         squares(x * weight_).backward();
         return squares(x * weight_);
       }},
      {"a hook", [&](const at::Tensor& x) {
         const at::Tensor y = x * weight_;
         y.register_hook([x](const at::Tensor& gradient) { return gradient; });
         at::Tensor loss = squares(y);
         loss.backward();
         return loss;
       }}};
  for (const auto& [name, way] : ways) {
    Made made = run(way);
    EXPECT_TRUE(made.history.may_hold_tensors()) << name;
    made.result.reset();
    EXPECT_FALSE(made.history.may_hold_tensors()) << name << ", which nobody holds any more";
  }
}

class Scales : public torch::autograd::Function<Scales> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& weight) {
    context->saved_data["x"] = x;
    return x * weight;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    return {at::Tensor(), (context->saved_data["x"].toTensor() * gradients[0]).sum(0)};
  }
};

TEST_P(ResultHistoryTest, MayHoldWhatACustomFunctionKeepsAfterItsBackwardPass) {
  const Made made = run([&](const at::Tensor& x) {
    at::Tensor loss = squares(Scales::apply(x, weight_));
    loss.backward();
    return loss;
  });
  EXPECT_TRUE(made.history.may_hold_tensors());
}

TEST_P(ResultHistoryTest, LeavesThatItAloneHoldsAreItsOwn) {
  at::Tensor held;
  const auto attack = [&](const at::Tensor& x, bool holds) {
    const at::Tensor leaf = x.detach().requires_grad_();
    at::Tensor loss = squares(leaf * weight_);
    (void)torch::autograd::grad({loss}, {leaf, weight_});
    if (holds) held = leaf;
    return loss;
  };
  const Made made = run([&](const at::Tensor& x) { return attack(x, /*holds=*/false); });
  EXPECT_FALSE(made.history.may_hold_tensors());
  EXPECT_EQ(made.history.references_to(made.x.storage()), 1U);
  const Made other = run([&](const at::Tensor& x) { return attack(x, /*holds=*/true); });
  EXPECT_EQ(other.history.references_to(other.x.storage()), 0U);
}

TEST_P(ResultHistoryTest, SoAreTheirGradients) {
  for (const bool holds : {false, true}) {
    at::Tensor held;
    c10::Storage gradient;
    const Made made = run([&](const at::Tensor& x) {
      const at::Tensor leaf = x.detach().requires_grad_();
      at::Tensor loss = squares(leaf * weight_);
      loss.backward();
      gradient = leaf.grad().storage();
      if (holds) held = leaf.grad();
      return loss;
    });
    EXPECT_EQ(made.history.references_to(gradient), holds ? 0U : 1U);
  }
}

TEST_P(ResultHistoryTest, MayHoldWhatHooksOfALeafHoldThatItAloneHolds) {
  for (const bool holds : {false, true}) {
    at::Tensor held;
    const Made made = run([&](const at::Tensor& x) {
      const at::Tensor leaf = x.detach().requires_grad_(), signs = x.sign();
      leaf.register_hook([signs](const at::Tensor& gradient) { return gradient * signs; });
      if (holds) held = leaf;
      at::Tensor loss = squares(leaf * weight_);
      loss.backward();
      return loss;
    });
    EXPECT_EQ(made.history.may_hold_tensors(), !holds);
  }
}

TEST_P(ResultHistoryTest, WhatIsOlderThanTheRunIsNotOfIt) {
  const at::Tensor before = weight_ * 2;
  const Made made = run([&](const at::Tensor& x) {
    const at::Tensor y = before.detach().requires_grad_();
    at::Tensor loss = squares(x * y);
    loss.backward();
    return loss + before.sum().detach();
  });
  EXPECT_TRUE(made.history.may_hold_tensors()) << "an addition that did not run";
  const Made old = run([&](const at::Tensor& /*x*/) { return before; });
  EXPECT_FALSE(old.history.may_hold_tensors());
}

}  // namespace
}  // namespace pianola::result_history_test

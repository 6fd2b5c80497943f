#include <pianola/trace/call_gate.hpp>

#include <pianola/core/error.hpp>
#include <pianola/trace/op_stream.hpp>
#include <pianola/trace/testing/op_log.hpp>

#include <ATen/ATen.h>

#include <gmock/gmock.h>

#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace pianola::trace::call_gate_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> calls_of(const std::function<void()>& step) {
  std::vector<std::string> names;
  const CallGate gate([&](const OpInfo& op, torch::jit::Stack& stack) {
    names.push_back(op.name);
    CallGate::run(op, stack);
  });
  step();
  return names;
}

TEST(CallGateTest, SeesEachCallAndLetsItRun) {
  const at::Tensor a = at::ones({2});
  at::Tensor b;
  EXPECT_THAT(calls_of([&] { b = a.add(1).mul_(2); }), ElementsAre("aten::add.Scalar", "aten::mul_.Scalar"));
  EXPECT_TRUE(at::equal(b, at::full({2}, 4.0)));
}

TEST(CallGateTest, SeesWhatACompositeCallsInItsPlace) {
  const at::Tensor a = at::ones({2, 3}), weight = at::ones({4, 3});
  const auto names = calls_of([&] { at::linear(a, weight).square().sum(); });
  EXPECT_EQ(names.front(), "aten::t");
  EXPECT_THAT(names, ::testing::Not(::testing::Contains("aten::linear")));
}

TEST(CallGateTest, SeesNothingThatAnOperationCallsForItself) {
  const at::Tensor a = at::ones({3}).requires_grad_();
  EXPECT_THAT(calls_of([&] { a.mul(a); }), ElementsAre("aten::mul.Tensor"));
}

TEST(CallGateTest, MayAnswerInPlaceOfTheOperator) {
  const at::Tensor a = at::ones({2}), other = at::full({2}, 7.0);
  at::Tensor result;
  {
    const CallGate gate([&](const OpInfo& op, torch::jit::Stack& stack) {
      torch::jit::drop(stack, op.schema().arguments().size());
      stack.emplace_back(other);
    });
    result = a.add(5);
  }
  EXPECT_TRUE(result.is_same(other));
  EXPECT_TRUE(at::equal(a, at::ones({2})));
}

TEST(CallGateTest, WhatTheHandlerCallsDoesNotComeToIt) {
  int calls = 0;
  const at::Tensor a = at::ones({2});
  {
    const CallGate gate([&](const OpInfo& op, torch::jit::Stack& stack) {
      ++calls;
      (void)a.mul(3);
      CallGate::run(op, stack);
    });
    (void)a.add(1);
  }
  EXPECT_EQ(calls, 1);
}

TEST(CallGateTest, OtherThreadsPass) {
  int calls = 0;
  const CallGate gate([&](const OpInfo& op, torch::jit::Stack& stack) {
    ++calls;
    CallGate::run(op, stack);
  });
  std::thread([] { (void)at::ones({2}).add(1); }).join();
  EXPECT_EQ(calls, 0);
}

TEST(CallGateTest, AnErrorOfACallComesOutAndTheGateGoesOn) {
  std::vector<std::string> names;
  const at::Tensor a = at::ones({2}), b = at::ones({3});
  {
    const CallGate gate([&](const OpInfo& op, torch::jit::Stack& stack) {
      names.push_back(op.name);
      CallGate::run(op, stack);
    });
    EXPECT_THROW((void)a.add(b), c10::Error);
    (void)a.neg();
  }
  EXPECT_THAT(names, ElementsAre("aten::add.Tensor", "aten::neg"));
}

TEST(CallGateTest, AGateWithinAnotherDecidesFirst) {
  std::vector<std::string> outer, inner;
  {
    const CallGate around([&](const OpInfo& op, torch::jit::Stack& stack) {
      outer.push_back(op.name);
      CallGate::run(op, stack);
    });
    {
      const CallGate within([&](const OpInfo& op, torch::jit::Stack& stack) {
        inner.push_back(op.name);
        if (op.name == "aten::neg") return (void)0;  // its argument for a result
        CallGate::run(op, stack);
      });
      EXPECT_TRUE(at::equal(at::ones({2}).exp().neg(), at::ones({2}).exp()));
    }
    EXPECT_TRUE(CallGate::is_open());
  }
  EXPECT_FALSE(CallGate::is_open());
  EXPECT_THAT(inner, ::testing::Contains("aten::neg"));
  EXPECT_THAT(outer, ::testing::Not(::testing::Contains("aten::neg")));
  EXPECT_THAT(outer, ::testing::Contains("aten::exp"));
}

TEST(CallGateTest, ToAStreamACallThatIsMadeOfOthersIsAComposite) {
  const at::Tensor a = at::ones({2});
  at::Tensor result;
  testing::OpLog log;
  {
    const OpStream stream({&log});
    const CallGate gate(
        [](const OpInfo& op, torch::jit::Stack& stack) {
          if (op.name != "aten::neg") return CallGate::run(op, stack);
          const at::Tensor x = torch::jit::pop(stack).toTensor();
          stack.emplace_back(x.mul(-1));
        },
        [](const OpInfo& op, c10::ArrayRef<c10::IValue> /*inputs*/) { return op.name == "aten::neg"; });
    result = a.neg().add(1);
  }
  EXPECT_THAT(log.begun, ElementsAre("aten::mul.Scalar", "aten::add.Scalar"));
  EXPECT_TRUE(result.equal(at::zeros({2})));
}

TEST(CallGateTest, AGateThatEndedSeesNothing) {
  EXPECT_THAT(calls_of([] {}), IsEmpty());
  EXPECT_FALSE(CallGate::is_open());
  EXPECT_TRUE(at::equal(at::ones({2}).add(1), at::full({2}, 2.0)));
}

}  // namespace
}  // namespace pianola::trace::call_gate_test

#include <pianola/trace/plain_check.hpp>

#include <pianola/torch_abi/named_tensors.hpp>

#include <pianola/trace/op_stream.hpp>
#include <pianola/trace/testing/device_test.hpp>
#include <pianola/trace/testing/op_log.hpp>

#include <ATen/ops/_efficientzerotensor.h>
#include <ATen/ops/_make_dual.h>
#include <ATen/ops/_nested_tensor_from_tensor_list.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/forward_grad.h>

#include <gmock/gmock.h>

#include <cstdint>
#include <functional>
#include <optional>

namespace pianola::trace::plain_check_test {
namespace {

using pianola::testing::OpLog;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class PlainCheckTest : public pianola::testing::DeviceTest {};
PIANOLA_ON_EVERY_DEVICE(PlainCheckTest);

// A level of forward-mode AD while it lives.
class DualLevel {
 public:
  DualLevel() : level_(torch::autograd::ForwardADLevel::get_next_idx()) {}
  DualLevel(const DualLevel&) = delete;
  DualLevel& operator=(const DualLevel&) = delete;
  ~DualLevel() { torch::autograd::ForwardADLevel::release_idx(level_); }

 private:
  std::uint64_t level_;
};

at::Tensor nested(const at::Tensor& x) { return at::_nested_tensor_from_tensor_list({x[0], x[1]}); }

TEST_P(PlainCheckTest, OrdinaryTensorsArePlain) {
  const at::Tensor x = randn({4, 4});
  for (const at::Tensor& plain :
       {x, x.t(), x[0], x.to(at::kDouble), x.clone().requires_grad_(), at::empty({0}), at::Tensor()}) {
    EXPECT_EQ(oddity_of_input(plain), Oddity::none);
  }
}

TEST_P(PlainCheckTest, KeysAndLayoutSayWhatATensorIs) {
  const at::Tensor x = randn({4, 4});
  EXPECT_EQ(oddity_of_input(x.to_sparse()), Oddity::sparse);
  EXPECT_EQ(oddity_of_input(x.to_sparse_csr()), Oddity::sparse);
  EXPECT_EQ(oddity_of_input(nested(x)), Oddity::nested);
  EXPECT_EQ(oddity_of_input(x.to(at::kMeta)), Oddity::meta);
  EXPECT_EQ(oddity_of_input(at::_efficientzerotensor({2}, x.options())), Oddity::zero);
#if PIANOLA_TORCH_HAS_NAMED_TENSORS
  EXPECT_EQ(
      oddity_of_input(x.refine_names({at::Dimname::fromSymbol(at::Symbol::dimname("N")), at::Dimname::wildcard()})),
      Oddity::named);
#endif
}

// The tape has its own word on sparse tensors, and those of zeros are the operation's own affair.
TEST_P(PlainCheckTest, InAStepSparseTensorsAreWhatTheySeem) {
  const at::Tensor x = randn({4, 4});
  EXPECT_EQ(oddity_in_step(x.to_sparse()), Oddity::none);
  EXPECT_EQ(oddity_in_step(at::_efficientzerotensor({2}, x.options())), Oddity::none);
  EXPECT_EQ(oddity_in_step(nested(x)), Oddity::nested);
}

TEST_P(PlainCheckTest, ATangentIsSeenAsLongAsItsLevelIsOpen) {
  const at::Tensor x = randn({4, 4});
  at::Tensor dual, view;
  {
    const DualLevel level;
    dual = at::_make_dual(x, at::ones_like(x), 0);
    view = dual.view({16});
    EXPECT_EQ(oddity_of_input(dual), Oddity::tangent);
    EXPECT_EQ(oddity_of_input(view), Oddity::tangent);
    EXPECT_EQ(oddity_in_step(dual), Oddity::tangent);
    EXPECT_EQ(oddity_of_input(x), Oddity::none);
  }
  EXPECT_EQ(oddity_of_input(dual), Oddity::none);
  EXPECT_EQ(oddity_of_input(view), Oddity::none);
}

TEST(PlainCheck, ModesAreThoseOfThisThreadThatAreNotExcluded) {
  EXPECT_EQ(oddity_of_modes(), Oddity::none);
  {
    const c10::impl::IncludeDispatchKeyGuard mode(c10::DispatchKey::Python);
    EXPECT_EQ(oddity_of_modes(), Oddity::dispatch_mode);
    const c10::impl::ExcludeDispatchKeyGuard hidden(c10::DispatchKey::Python);
    EXPECT_EQ(oddity_of_modes(), Oddity::none);
  }
  {
    const c10::impl::IncludeDispatchKeyGuard mode(c10::DispatchKey::FuncTorchDynamicLayerFrontMode);
    EXPECT_EQ(oddity_of_modes(), Oddity::transform);
  }
  {
    const c10::impl::IncludeDispatchKeyGuard mode(c10::DispatchKey::Tracer);
    EXPECT_EQ(oddity_of_modes(), Oddity::jit_trace);
  }
  EXPECT_EQ(oddity_of_modes(), Oddity::none);
}

TEST(PlainCheck, NamesOfOperatorsSpansAndScopes) {
  EXPECT_EQ(oddity_of_operator("c10d::allreduce_"), Oddity::communication);
  EXPECT_EQ(oddity_of_operator("c10d::barrier"), Oddity::collective);
  EXPECT_EQ(oddity_of_operator("_c10d_functional::all_reduce"), Oddity::none);
  EXPECT_EQ(oddity_of_operator("aten::mm"), Oddity::none);
  EXPECT_EQ(oddity_of_span("TorchDynamo Cache Lookup"), Oddity::compiled);
  EXPECT_EQ(oddity_of_span("autograd::engine::evaluate_function: MmBackward0"), Oddity::none);
  EXPECT_EQ(oddity_of_scope("CompiledFunctionBackward"), Oddity::compiled);
  EXPECT_EQ(oddity_of_scope("DistributedDataParallel.forward"), Oddity::data_parallel);
  EXPECT_EQ(oddity_of_scope("FullyShardedDataParallel.forward"), Oddity::sharded);
  EXPECT_EQ(oddity_of_scope("callable 1"), Oddity::none);
}

TEST(PlainCheck, EachOddityHasARemedyAndARule) {
  for (int i = 1; i <= static_cast<int>(Oddity::sharded); ++i) {
    EXPECT_FALSE(remedy_of(static_cast<Oddity>(i)).empty()) << i;
    EXPECT_THAT(rule_of(static_cast<Oddity>(i)), HasSubstr("PG1")) << i;
  }
}

TEST(PlainCheck, ARefusalSaysWhatAndWhatToDo) {
  const at::Tensor x = at::ones({2, 2}).to_sparse();
  const Diagnosis input = refuse_input(Oddity::sparse, "input 1", x);
  EXPECT_EQ(input.what, "input 1 is a sparse tensor, whose size a graph cannot follow");
  EXPECT_EQ(input.fix, "pass its parts (indices() and values()), or a dense tensor");
  EXPECT_EQ(input.rule, "PG1203");
  EXPECT_EQ(refuse_modes(Oddity::jit_trace, "replay()", "nothing was launched").what,
            "replay() was called inside torch.jit.trace, which a graph does not obey; nothing was launched");
}

// --- In a stream ---

std::optional<OddWork> odd_work_of(OpLog& log, const std::function<void()>& step) {
  const OpStream stream({&log});
  step();
  return stream.odd_work();
}

TEST_P(PlainCheckTest, AStreamKeepsOddOperationsFromItsObservers) {
  const at::Tensor x = randn({4, 4});
  const DualLevel level;
  const at::Tensor dual = at::_make_dual(x, at::ones_like(x), 0);
  OpLog log;
  const auto odd = odd_work_of(log, [&] {
    at::mul(x, x);
    RECORD_USER_SCOPE("part");
    at::mul(dual, x);
    at::mul(x, dual);
  });
  EXPECT_THAT(log.begun, ElementsAre("aten::mul.Tensor"));
  ASSERT_TRUE(odd);
  EXPECT_EQ(odd->oddity, Oddity::tangent);
  EXPECT_EQ(odd->op, "aten::mul");
  const Diagnosis diagnosis = odd->diagnosis();
  EXPECT_EQ(diagnosis.what,
            "aten::mul is given a dual tensor of forward-mode AD, whose tangent a graph does not compute");
  EXPECT_THAT(diagnosis.where, HasSubstr("scope 'part'"));
  EXPECT_EQ(diagnosis.rule, "PG1203");
}

TEST_P(PlainCheckTest, AnOddResultIsSeenByNobody) {
  const at::Tensor x = randn({4, 4});
  OpLog log;
  const auto odd = odd_work_of(log, [&] { nested(x); });
  ASSERT_TRUE(odd);
  EXPECT_EQ(odd->oddity, Oddity::nested);
  EXPECT_THAT(odd->what, HasSubstr("makes a nested tensor"));
}

TEST_P(PlainCheckTest, TheOuterStreamKnowsToo) {
  const at::Tensor x = randn({4, 4});
  const at::Tensor odd = nested(x);
  OpLog outer_log, inner_log;
  const OpStream outer({&outer_log});
  EXPECT_TRUE(odd_work_of(inner_log, [&] { at::mul(odd, odd); }));
  EXPECT_TRUE(outer.odd_work());
  EXPECT_THAT(inner_log.begun, IsEmpty());
  EXPECT_FALSE(odd_work_of(inner_log, [&] { at::mul(x, x); }));
}

TEST(PlainCheck, AStreamKnowsCompiledCodeByItsLookups) {
  OpLog log;
  const auto odd = odd_work_of(log, [] {
    RECORD_FUNCTION("TorchDynamo Cache Lookup", c10::ArrayRef<const c10::IValue>{});
    at::ones({2});
  });
  ASSERT_TRUE(odd);
  EXPECT_EQ(odd->diagnosis().rule, "PG1005");
  EXPECT_THAT(log.begun, ElementsAre("aten::ones"));
}

TEST(PlainCheck, AStreamKnowsDistributedDataParallelByItsScope) {
  OpLog log;
  const OpStream stream({&log});
  {
    RECORD_USER_SCOPE("DistributedDataParallel.forward");
    at::ones({2});
  }
  EXPECT_FALSE(stream.odd_work()) << "a whole step may";
  const auto communication = stream.communication();
  ASSERT_TRUE(communication);
  EXPECT_EQ(communication->diagnosis().rule, "PG1106");
  EXPECT_THAT(communication->what, HasSubstr("DistributedDataParallel.forward"));
}

}  // namespace
}  // namespace pianola::trace::plain_check_test

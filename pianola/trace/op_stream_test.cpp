#include <pianola/trace/op_stream.hpp>

#include <pianola/trace/quiet_scope.hpp>
#include <pianola/trace/testing/device_test.hpp>
#include <pianola/trace/testing/op_log.hpp>

#include <ATen/autocast_mode.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/autograd.h>

#include <malloc.h>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <thread>

namespace pianola::trace::op_stream_test {
namespace {

using pianola::testing::log_of;
using pianola::testing::OpLog;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class OpStreamOrder : public pianola::testing::DeviceTest {};
PIANOLA_ON_EVERY_DEVICE(OpStreamOrder);

TEST_P(OpStreamOrder, ShowsForwardAndBackwardInTheOrderOfTheirCalls) {
  const at::Tensor x = randn({4, 4}), w = randn({4, 4}, 2).requires_grad_();
  const OpLog log = log_of([&] { torch::autograd::grad({at::relu(at::mm(x, w)).sum()}, {w}); });
  EXPECT_THAT(log.begun, ElementsAre("aten::mm", "aten::relu", "aten::sum", "aten::ones_like", "aten::expand",
                                     "aten::threshold_backward", "aten::t", "aten::mm"));
  EXPECT_THAT(log.backward, ElementsAre("", "", "", "", "SumBackward0", "ReluBackward0", "MmBackward0", "MmBackward0"));
  for (std::size_t i = 1; i < log.numbers.size(); ++i) EXPECT_LT(log.numbers[i - 1], log.numbers[i]);
}

TEST_P(OpStreamOrder, ShowsTheEndOfAnOperationBeforeTheNextBegins) {
  const at::Tensor x = randn({4, 4});
  const OpLog log = log_of([&] { at::relu(at::mm(x, x)); });
  EXPECT_THAT(log.events, ElementsAre("+aten::mm", "-aten::mm", "+aten::relu", "-aten::relu"));
  EXPECT_THAT(log.results, ElementsAre(1U, 1U));
}

TEST_P(OpStreamOrder, GivesBackwardTheUserScopeThatItWasCalledIn) {
  const at::Tensor x = randn({4, 4}).requires_grad_();
  const OpLog log = log_of([&] {
    RECORD_USER_SCOPE("train");
    torch::autograd::grad({at::relu(x).sum()}, {x});
  });
  EXPECT_EQ(log.begun.back(), "aten::threshold_backward");
  EXPECT_THAT(log.scopes, Each("/train"));
}

at::Tensor some() { return at::ones({2, 2}); }

TEST(OpStream, ShowsNoInnerCallsAsOperationsAndTellsTheirEnd) {
  struct Inner : OpObserver {
    [[nodiscard]] OpInterest interest() const override { return {.inner = true}; }
    void on_inner_end(const OpSpan& around, const char* inner) override {
      seen.push_back(around.info->name + ">" + inner);
    }
    std::vector<std::string> seen;
  } inner;
  const at::Tensor x = at::ones({1});
  OpLog log;
  {
    const OpStream stream({&log, &inner});
    at::ones({2});
    x.item<float>();
  }
  EXPECT_THAT(log.begun, ElementsAre("aten::ones", "aten::_local_scalar_dense"));
  EXPECT_THAT(inner.seen, ElementsAre("aten::ones>aten::empty", "aten::ones>aten::fill_", "aten::item>aten::item"));
}

TEST_P(OpStreamOrder, ShowsWhatAKernelForAutogradCallsInsideItsOperation) {
  struct Around : OpLog {
    void on_op_begin(const OpSpan& op) override {
      OpLog::on_op_begin(op);
      around.push_back(op.around);
    }
    std::vector<std::uint64_t> around;
  } log;
  const at::Tensor x = randn({4}).requires_grad_(), y = randn({4}, 2).requires_grad_();
  at::Tensor changed = x * 1;
  {
    const OpStream stream({&log});
    changed.mul_(y);
  }
  EXPECT_THAT(log.events, ElementsAre("+aten::mul_.Tensor", "+aten::clone", "-aten::clone", "-aten::mul_.Tensor"));
  EXPECT_THAT(log.around, ElementsAre(0U, log.numbers[0]));
}

TEST_P(OpStreamOrder, ShowsNoCloneWhereNothingIsDifferentiated) {
  at::Tensor x = randn({4});
  const OpLog log = log_of([&] { x.mul_(2).clamp_(0, 1); });
  EXPECT_THAT(log.events, ElementsAre("+aten::mul_.Scalar", "-aten::mul_.Scalar", "+aten::clamp_", "-aten::clamp_"));
}

TEST(OpStream, NamesTheCompositesAroundAnOperation) {
  const at::Tensor x = at::ones({1}), m = some();
  const OpLog log = log_of([&] {
    x.item<float>();
    at::layer_norm(m, {2});
    at::relu(m);
  });
  EXPECT_THAT(log.begun, ElementsAre("aten::_local_scalar_dense", "aten::native_layer_norm", "aten::relu"));
  EXPECT_THAT(log.callers, ElementsAre(ElementsAre("aten::item"), ElementsAre("aten::layer_norm"), IsEmpty()));
}

TEST(OpStream, ShowsTheCastsOfAutocastAndTheCallInside) {
  const at::Tensor x = some();
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const OpLog log = log_of([&] { at::mm(x, x); });
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_THAT(log.begun, ElementsAre("aten::_to_copy", "aten::_to_copy", "aten::mm"));
  EXPECT_EQ(log.callers.back(), std::vector<std::string>{"aten::mm"});
}

TEST(OpStream, ShowsNothingBeforeOrAfterItsLife) {
  const at::Tensor x = some();
  OpLog log;
  at::relu(x);
  { const OpStream stream({&log}); }
  at::relu(x);
  EXPECT_THAT(log.begun, IsEmpty());
}

TEST(OpStream, ShowsNothingOfPianolasOwnWork) {
  const at::Tensor x = some();
  const OpLog log = log_of([&] {
    const QuietScope quiet;
    at::relu(x);
  });
  EXPECT_THAT(log.begun, IsEmpty());
}

TEST(OpStream, OfAnInnerStreamReachesTheOuterOneToo) {
  const at::Tensor x = some();
  OpLog outer, inner;
  {
    const OpStream around({&outer});
    at::relu(x);
    {
      const OpStream within({&inner});
      at::gelu(x);
    }
    at::mm(x, x);
  }
  EXPECT_THAT(outer.begun, ElementsAre("aten::relu", "aten::gelu", "aten::mm"));
  EXPECT_THAT(inner.begun, ElementsAre("aten::gelu"));
}

TEST(OpStream, TellsWhetherItIsTheInnermost) {
  OpLog log;
  const OpStream outer({&log});
  EXPECT_TRUE(outer.is_innermost());
  {
    const OpStream inner({&log});
    EXPECT_TRUE(inner.is_innermost());
    EXPECT_FALSE(outer.is_innermost());
  }
  EXPECT_TRUE(outer.is_innermost());
  std::thread([&] { EXPECT_FALSE(outer.is_innermost()); }).join();
}

TEST(OpStream, KeepsTheUserScopesOfAnOuterStreamInAnInnerOne) {
  const at::Tensor x = some();
  OpLog inner;
  const OpStream around({});
  RECORD_USER_SCOPE("outside");
  {
    const OpStream within({&inner});
    at::relu(x);
  }
  EXPECT_THAT(inner.scopes, ElementsAre("/outside"));
}

TEST(OpStream, NamesTheOpenUserScopesOutermostFirst) {
  const at::Tensor x = some();
  const OpLog log = log_of([&] {
    RECORD_USER_SCOPE("model");
    {
      RECORD_USER_SCOPE("layer");
      at::relu(x);
    }
    at::gelu(x);
  });
  EXPECT_THAT(log.scopes, ElementsAre("/model/layer", "/model"));
}

TEST(OpStream, ForgetsAScopeThatAnEarlierRecordingLeftOpen) {
  const at::Tensor x = some();
  std::optional<at::RecordFunction> forgotten;
  log_of([&] {
    forgotten.emplace(at::RecordScope::USER_SCOPE);
    forgotten->before("forgotten");
  });
  const OpLog log = log_of([&] {
    RECORD_USER_SCOPE("mine");
    at::relu(x);
    forgotten.reset();
    at::gelu(x);
  });
  EXPECT_THAT(log.scopes, ElementsAre("/mine", "/mine")) << "its late end closes no scope of this recording";
}

TEST(OpStream, GoesOnAfterAnOperationThatThrew) {
  const at::Tensor x = some(), wrong = at::ones({3, 3});
  const OpLog log = log_of([&] {
    RECORD_USER_SCOPE("scope");
    EXPECT_THROW(at::mm(x, wrong), c10::Error);
    EXPECT_THROW(at::layer_norm(x, {7}), c10::Error) << "inside a composite";
    at::relu(x);
  });
  EXPECT_THAT(log.events, ElementsAre("+aten::mm", "-aten::mm", "+aten::native_layer_norm", "-aten::native_layer_norm",
                                      "+aten::relu", "-aten::relu"));
  EXPECT_THAT(log.results, ElementsAre(0U, 0U, 1U));
  EXPECT_THAT(log.callers.back(), IsEmpty());
  EXPECT_THAT(log.scopes, Each("/scope"));
}

struct ThrowsAtGelu : OpLog {
  explicit ThrowsAtGelu(bool throw_at_end) : at_end(throw_at_end) {}
  void on_op_begin(const OpSpan& op) override {
    OpLog::on_op_begin(op);
    if (!at_end && op.info->name == "aten::gelu") throw std::runtime_error("no room");
  }
  void on_op_end(const OpSpan& op) override {
    OpLog::on_op_end(op);
    if (at_end && op.info->name == "aten::gelu") throw 7;  // NOLINT: what is no std::exception
  }
  bool at_end;
};

TEST(OpStream, ShowsNothingMoreToAnObserverThatThrewAndTellsWhy) {
  const at::Tensor x = some();
  for (const bool at_end : {false, true}) {
    ThrowsAtGelu thrower(at_end);
    OpLog other;
    const OpStream stream({&thrower, &other});
    at::relu(x);
    EXPECT_FALSE(stream.failure().has_value());
    EXPECT_NO_THROW(stream.check());
    at::gelu(x);
    at::relu(x);
    EXPECT_EQ(thrower.events.back(), at_end ? "-aten::gelu" : "+aten::gelu");
    EXPECT_THAT(other.events,
                ElementsAre("+aten::relu", "-aten::relu", "+aten::gelu", "-aten::gelu", "+aten::relu", "-aten::relu"));
    ASSERT_TRUE(stream.failure().has_value());
    EXPECT_THAT(
        pianola::testing::refusal<CaptureError>("an operation that could not be recorded", [&] { stream.check(); }),
        AllOf(HasSubstr("could not be recorded, from aten::gelu"), HasSubstr(at_end ? "" : "no room"),
              HasSubstr("fix:"), HasSubstr("report it")));
  }
}

// As one whose end came on another thread: it stays where it was begun, for as long as that thread lives.
TEST(OpStream, NotesNothingOnceItIsDisarmed) {
  OpLog log;
  OpStream stream({&log});
  stream.disarm();
  const auto run = [] {
    at::Tensor x = some();
    for (int i = 0; i < 100; ++i) x = at::relu(x);
  };
  for (int i = 0; i < 20; ++i) run();
  const auto before = static_cast<std::int64_t>(mallinfo2().uordblks);
  for (int i = 0; i < 100; ++i) run();
  EXPECT_THAT(log.begun, IsEmpty());
#if !defined(__SANITIZE_ADDRESS__)  // whose malloc keeps no such account
  EXPECT_LT(static_cast<std::int64_t>(mallinfo2().uordblks) - before, 16 * 1024) << "of 10,000 operations";
#endif
}

TEST(OpStream, TellsTheFailureOfAnInnerStreamToThatAlone) {
  const at::Tensor x = some();
  ThrowsAtGelu thrower(false);
  OpLog outer_log;
  const OpStream outer({&outer_log});
  {
    const OpStream inner({&thrower});
    at::gelu(x);
    EXPECT_TRUE(inner.failure().has_value());
  }
  at::relu(x);
  EXPECT_FALSE(outer.failure().has_value());
  EXPECT_THAT(outer_log.events, ElementsAre("+aten::gelu", "-aten::gelu", "+aten::relu", "-aten::relu"));
}

}  // namespace
}  // namespace pianola::trace::op_stream_test

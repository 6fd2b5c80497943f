#include <pianola/audit/session.hpp>

#include <pianola/audit/testing/audit_test.hpp>
#include <pianola/core/error.hpp>
#include <pianola/trace/testing/reused_identity.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/mm.h>

#include <fmt/format.h>

#include <stdexcept>

namespace pianola::session_test {
namespace {

using auditing::Session;
using ::testing::AllOf;
using testing::clone_all;
using testing::expect_same;
using testing::finding_of;
using ::testing::HasSubstr;
using testing::NamedTensors;
using testing::refusal;
using testing::Training;

class Sessions : public testing::AuditTest {};
PIANOLA_ON_EVERY_DEVICE(Sessions);

TEST_P(Sessions, PutAllStateBackBitForBit) {
  Training training(device(), 0.2);
  const NamedTensors before = clone_all(training.state());
  const at::Tensor random = state_of(generator()).clone();
  const AuditReport report = audit([&] { training.step(); });
  EXPECT_TRUE(report.ok()) << report.to_text();
  expect_same(training.state(), before, "after the audit");
  EXPECT_TRUE(testing::same(state_of(generator()), random));
}

TEST_P(Sessions, PutBackGradientsAlsoThoseThatWereUndefined) {
  const at::Tensor w = parameter({4}, 1);
  const at::Tensor v = parameter({4}, 2);
  v.mutable_grad() = at::ones({4}, device());
  const at::Tensor gradient = v.grad();
  (void)audit([&] { (w * v).sum().backward(); }, {.warmup = 0});
  EXPECT_FALSE(w.grad().defined());
  ASSERT_TRUE(v.grad().is_same(gradient));
  EXPECT_TRUE(testing::same(gradient, at::ones({4}, device())));
}

TEST_P(Sessions, PutBackWhatAHazardousOrFailingStepWrote) {
  const at::Tensor x = randn({4});
  const at::Tensor before = x.clone();
  (void)audit([&] {
    x.add_(1);
    (void)x.sum().item<float>();
  });
  EXPECT_TRUE(testing::same(x, before));
  (void)audit([&] {
    x.add_(1);
    throw std::runtime_error("no more batches");
  });
  EXPECT_TRUE(testing::same(x, before));
}

TEST_P(Sessions, LeaveStateWhereItIsToStay) {
  const at::Tensor x = at::zeros({4}, device());
  (void)audit([&] { x.add_(1); }, {.warmup = 1, .trial = false, .restore = false});
  EXPECT_TRUE(testing::same(x, at::full({4}, 4.0, device())));
}

TEST_P(Sessions, TellWhatTheStepThrows) {
  const at::Tensor x = randn({4});
  int line = 0;
  const AuditReport report = audit([&] {
    line = __LINE__ + 1;
    const at::Tensor y = x.mm(x);
  });
  EXPECT_RULES(report, "PG1202");
  const Finding finding = finding_of(report, "PG1202");
  EXPECT_THAT(finding.evidence, AllOf(HasSubstr("must be a matrix"), ::testing::Not(HasSubstr("frame #"))));
  EXPECT_EQ(finding.place.line, line);
  EXPECT_EQ(finding.iteration, 0);
  EXPECT_FALSE(report.ok());
}

TEST_P(Sessions, TellWhatTheStepDidBeforeItThrew) {
  const at::Tensor x = randn({4});
  int calls = 0;
  const AuditReport report = audit([&] {
    (void)x.sum().item<float>();
    if (++calls == 3) throw std::runtime_error("the third call fails");
  });
  EXPECT_RULES(report, "PG101 PG1202");
  EXPECT_EQ(finding_of(report, "PG1202").iteration, 2);
  EXPECT_THAT(finding_of(report, "PG1202").evidence, HasSubstr("the third call"));
  EXPECT_EQ(calls, 3);  // no run and no capture afterwards
}

TEST_P(Sessions, RefuseOptionsOutOfRange) {
  const auto step = [] {};
  EXPECT_THAT(refusal<UsageError>("one iteration", [&] { (void)audit(step, {.iterations = 1}); }),
              HasSubstr("iterations must be 2 or more, got 1"));
  EXPECT_THAT(refusal<UsageError>("negative warm-up", [&] { (void)audit(step, {.warmup = -1}); }),
              HasSubstr("warmup must be 0 or more, got -1"));
  EXPECT_THAT(refusal<UsageError>("undefined generator", [&] { (void)audit(step, {.generators = {at::Generator()}}); }),
              HasSubstr("'generators' is undefined"));
  EXPECT_THAT(refusal<UsageError>("no batches",
                                  [&] {
                                    (void)audit([](const std::vector<at::Tensor>& in) { return in; },
                                                std::vector<std::vector<at::Tensor>>{});
                                  }),
              HasSubstr("no batches"));
}

TEST_P(Sessions, RefuseToRunInsideACapture) {
  const at::Tensor x = randn({4});
  std::string message;
  Graph graph(device());
  graph.capture(
      [&] {
        x.add_(1);
        message = refusal<UsageError>("audit in a capture", [&] { (void)audit([] {}); });
      },
      {.warmup = 0});
  EXPECT_THAT(message, HasSubstr("a capture is open"));
}

TEST_P(Sessions, PlayTheLoopBetweenAllRuns) {
  const at::Tensor x = randn({4});
  std::vector<int> between;
  int calls = 0;
  const AuditReport report = audit(
      [&] {
        ++calls;
        x.mul_(0.5);
      },
      {.iterations = 4, .warmup = 2, .between = [&](int run) { between.push_back(run); }, .trial = false});
  EXPECT_EQ(calls, 6);
  EXPECT_EQ(between, (std::vector{1, 2, 3, 4, 5}));
  EXPECT_EQ(report.iterations, 4);
}

TEST_P(Sessions, TakeModulesNamesAndFindingsFromTheirCaller) {
  const at::Tensor x = randn({4});
  at::Tensor cache = randn({4}, 1);
  const auto run = [&](Session& session) {
    session.begin({.inputs = {x}, .names = {{"cache", cache}}});
    EXPECT_EQ(session.operations(), 0U);
    session.enter_module("encoder");
    const at::Tensor y = x * 2;
    session.enter_module("encoder.head");
    (void)(y + cache).sum().item<float>();
    session.leave_module();
    session.leave_module();
    EXPECT_GE(session.operations(), 4U);
    session.end({y});
  };
  Session session({.subject = "a step of mine"});
  run(session);
  cache = randn({4}, 2);
  run(session);
  Finding own = Finding::of("PG604");
  own.place = {.function = "step", .file = "step.py", .line = 3};
  session.add(own);
  session.add_note("something could not be seen");
  const AuditReport report = session.finish();
  EXPECT_RULES(report, "PG101 PG401 PG604");
  EXPECT_EQ(report.subject, "a step of mine");
  EXPECT_EQ(finding_of(report, "PG101").module, "encoder.head");
  EXPECT_THAT(finding_of(report, "PG401").what, HasSubstr("'cache'"));
  EXPECT_EQ(report.notes(), std::vector<std::string>{"something could not be seen"});
}

// As a gradient that the step drops, and what it computes next.
TEST_P(Sessions, GiveTheNameOfAFreedTensorToNoOther) {
  if (!testing::identities_are_reused()) GTEST_SKIP() << "no storage takes a freed one's place";
  const at::Tensor flag = randn({}) < 0;
  Session session({});
  for (int run = 0; run < 2; ++run) {
    at::Tensor gradient = randn({4});
    session.begin({.inputs = {}, .names = {{"bias.grad", gradient}}});
    const void* const freed = trace::storage_of(gradient);
    gradient.reset();
    (void)testing::made_in_place_of(freed, [&] { return flag.logical_not(); }).is_nonzero();
    session.end();
  }
  const Finding finding = finding_of(session.finish(), "PG102");
  EXPECT_THAT(finding.evidence, HasSubstr("of a Bool [] tensor, computed by aten::logical_not"));
}

TEST_P(Sessions, PutStateBackThoughNobodyFinishes) {
  const at::Tensor x = at::zeros({4}, device());
  {
    Session session({});
    session.begin();
    x.add_(1);
  }
  EXPECT_TRUE(testing::same(x, at::zeros({4}, device())));
}

// A hook that computes inside an operation: eager runs show nothing of it, a capture refuses it.
TEST_P(Sessions, TheTrialFindsWhatRunsDoNotShow) {
  if (on_cuda()) GTEST_SKIP() << "on CUDA the runs show what such an operation waits for";
  const at::Tensor x = randn({4, 4}).to_sparse();
  const at::Tensor y = randn({4, 4});
  at::Tensor z;
  const auto step = [&] { z = at::mm(x, y).to_sparse(); };
  const AuditReport report = audit(step);
  EXPECT_FALSE(report.ok()) << report.to_text();
  EXPECT_THAT(report.findings()[0].evidence, HasSubstr("seen when the step was captured"));
  EXPECT_RULES(audit(step, {.trial = false}), "");
}

}  // namespace
}  // namespace pianola::session_test

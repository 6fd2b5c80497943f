#include <pianola/audit/testing/audit_test.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>

#include <array>
#include <deque>
#include <optional>
#include <vector>

namespace pianola::moved_memory_test {
namespace {

using testing::finding_of;
using ::testing::HasSubstr;
using testing::lasting_findings;

class MovedMemory : public testing::AuditTest {};
PIANOLA_ON_EVERY_DEVICE(MovedMemory);

TEST_P(MovedMemory, ATensorThatTheLoopReplaces) {
  at::Tensor x = randn({4});
  const at::Tensor out = at::zeros({4}, device());
  int line = 0;
  const AuditReport report = audit(
      [&] {
        line = __LINE__ + 1;
        out.copy_(x);
      },
      {.between = [&](int run) { x = randn({4}, static_cast<std::uint64_t>(run) + 5); }});
  EXPECT_RULES(report, "PG401");
  const Finding finding = finding_of(report, "PG401");
  EXPECT_EQ(finding.place.line, line);
  EXPECT_EQ(finding.op, "aten::copy_");
  EXPECT_THAT(finding.evidence, HasSubstr("iteration 2"));
}

TEST_P(MovedMemory, IsNamedWhereItHasAName) {
  at::Tensor x = randn({4});
  const at::Tensor out = at::zeros({4}, device());
  const at::Tensor first = x;
  const AuditReport report =
      audit([&] { out.copy_(x); }, {.warmup = 0,
                                    .between = [&](int run) { x = randn({4}, static_cast<std::uint64_t>(run) + 5); },
                                    .names = {{"cache", first}}});
  EXPECT_RULES(report, "PG401");
  EXPECT_THAT(finding_of(report, "PG401").what, HasSubstr("'cache'"));
}

TEST_P(MovedMemory, OneThatComesBackToTheAddressOfAFreedOne) {
  std::optional<at::Tensor> x = randn({4});
  const at::Tensor out = at::zeros({4}, device());
  bool same_address = true;
  const auto replace = [&](int run) {
    const void* const before = x->data_ptr();
    x.reset();
    std::vector<at::Tensor> others;
    for (int tries = 0; tries < 1000 && !(x && x->data_ptr() == before); ++tries) {
      if (x) others.push_back(*x);
      x = at::empty({4}, device());
    }
    same_address = same_address && x->data_ptr() == before;
    x->fill_(run);
  };
  const AuditReport report = audit([&] { out.copy_(*x); }, {.between = replace, .trial = false});
  // Of the pairs of runs that are compared, the first with the last too, one may meet its address again by chance.
  EXPECT_THAT(testing::rules_of(report), ::testing::AnyOf("PG404", same_address ? "PG404" : "PG401"));
  EXPECT_FALSE(report.ok());
}

TEST_P(MovedMemory, OneThatWasFreedBeforeTheNextWasMade) {
  std::optional<at::Tensor> x = randn({4});
  const at::Tensor out = at::zeros({4}, device());
  std::vector<at::Tensor> others;
  const AuditReport report = audit([&] { out.copy_(*x); }, {.between = [&](int run) {
                                     const void* const before = x->data_ptr();
                                     x.reset();
                                     for (int tries = 0; tries < 1000; ++tries) {  // until one takes its place
                                       others.push_back(randn({4}, 1));
                                       if (others.back().data_ptr() == before) break;
                                     }
                                     x = randn({4}, static_cast<std::uint64_t>(run) + 5);
                                   }});
  EXPECT_RULES(report, "PG401");
  EXPECT_THAT(finding_of(report, "PG401").evidence, HasSubstr("the first one was freed"));
}

TEST_P(MovedMemory, AnotherTensorOnTheSameMemoryOfTheUsersOwn) {
  if (on_cuda()) GTEST_SKIP() << "a copy from host memory there";
  std::array<float, 4> buffer = {1, 2, 3, 4};
  at::Tensor x = at::from_blob(buffer.data(), {4});
  const at::Tensor out = at::zeros({4});
  EXPECT_RULES(audit([&] { out.copy_(x); }, {.between =
                                                 [&](int run) {
                                                   buffer[0] = static_cast<float>(run);
                                                   x = at::from_blob(buffer.data(), {4});
                                                 }}),
               "");
}

TEST_P(MovedMemory, BuffersInTurn) {
  std::deque<at::Tensor> buffers = {randn({4}, 1), randn({4}, 2)};
  const at::Tensor out = at::zeros({4}, device());
  EXPECT_RULES(audit([&] { out.copy_(buffers.front()); }, {.between = [&](int) { std::swap(buffers[0], buffers[1]); }}),
               "PG401");
}

TEST_P(MovedMemory, AQueueThatTheStepEmpties) {
  std::deque<at::Tensor> queue;
  for (std::uint64_t i = 0; i < 8; ++i) queue.push_back(randn({4}, i));
  const at::Tensor out = at::zeros({4}, device());
  EXPECT_RULES(audit([&] {
                 out.copy_(queue.front());
                 queue.pop_front();
               }),
               "PG401");
}

TEST_P(MovedMemory, AnotherPlaceOfTheSameMemory) {
  const at::Tensor all = randn({8, 4});
  at::Tensor x = all[0];
  const at::Tensor out = at::zeros({4}, device());
  EXPECT_RULES(audit([&] { out.copy_(x); }, {.between = [&](int run) { x = all[run]; }}), "PG401");
}

TEST_P(MovedMemory, AParameterWhoseDataIsReplaced) {
  const at::Tensor w = parameter({4, 4}, 1);
  const at::Tensor x = randn({2, 4});
  at::Tensor gradient;
  const AuditReport report = audit([&] { gradient = torch::autograd::grad({at::mm(x, w).sum()}, {w})[0]; },
                                   {.between =
                                        [&](int run) {
                                          const at::NoGradGuard no_grad;
                                          w.set_data(randn({4, 4}, static_cast<std::uint64_t>(run) + 3));
                                        },
                                    .names = {{"layer.weight", w}}});
  EXPECT_RULES(report, "PG402");
  EXPECT_THAT(finding_of(report, "PG402").what, HasSubstr("'layer.weight'"));
}

TEST_P(MovedMemory, AStateThatTheStepMakesAnew) {
  at::Tensor h = at::zeros({4}, device());
  const at::Tensor x = randn({4});
  int line = 0;
  const AuditReport report = audit([&] {
    line = __LINE__ + 1;
    h = (h + x).tanh();
  });
  EXPECT_RULES(report, "PG802");
  EXPECT_EQ(finding_of(report, "PG802").place.line, line);
  EXPECT_THAT(finding_of(report, "PG802").evidence, HasSubstr("aten::tanh"));
}

TEST_P(MovedMemory, ACacheThatGrows) {
  at::Tensor cache = at::zeros({1, 4}, device());
  const at::Tensor x = randn({1, 4});
  at::Tensor y;
  EXPECT_RULES(audit([&] {
                 cache = at::cat({cache, x});
                 y = cache.sum(0);
               }),
               "PG502 PG802");
}

TEST_P(MovedMemory, ANewTensorForEveryRunOfTheStepIsItsOwn) {
  const at::Tensor x = randn({4});
  at::Tensor y, z;
  EXPECT_RULES(audit([&] {
                 y = x * 2;
                 z = y + 1;
               }),
               "");
}

class Gradients : public testing::AuditTest {};
PIANOLA_ON_EVERY_DEVICE(Gradients);

TEST_P(Gradients, DroppedBetweenIterations) {
  const at::Tensor w = parameter({4, 4}, 1);
  const at::Tensor b = parameter({4}, 2);
  const at::Tensor x = randn({2, 4});
  int line = 0;
  const AuditReport report = audit(
      [&] {
        const at::Tensor y = (at::mm(x, w) + b).sum();
        line = __LINE__ + 1;
        y.backward();
      },
      {.between =
           [&](int) {
             w.mutable_grad().reset();
             b.mutable_grad().reset();
           },
       .names = {{"w", w}, {"b", b}}});
  EXPECT_RULES(report, "PG403");
  ASSERT_EQ(lasting_findings(report).size(), 1U) << report.to_text();
  const Finding finding = report.findings()[0];
  EXPECT_THAT(finding.what, ::testing::AllOf(HasSubstr("2 parameters"), HasSubstr("'w'"), HasSubstr("'b'")));
  if (on_cuda()) return;  // there backward has a thread of its own
  EXPECT_EQ(finding.place.line, line);
}

TEST_P(Gradients, ReplacedForAnOptimizerThatIsTheStep) {
  const at::Tensor w = parameter({4}, 1);
  const auto compute = [&](int run) { w.mutable_grad() = randn({4}, static_cast<std::uint64_t>(run) + 3); };
  compute(0);
  const AuditReport report = audit(
      [&] {
        const at::NoGradGuard no_grad;
        w.detach().add_(w);
        w.detach().sub_(w.grad(), 0.1);
      },
      {.between = compute});
  EXPECT_RULES(report, "PG403");
}

TEST_P(Gradients, KeptWhenTheNextOnesAreComputed) {
  const at::Tensor w = parameter({4}, 1);
  std::vector<at::Tensor> kept;
  const AuditReport report = audit(
      [&] {
        w.mutable_grad().reset();
        (w * 2).sum().backward();
      },
      {.between = [&](int) { kept.push_back(w.grad()); }});
  EXPECT_RULES(report, "PG903");
}

TEST_P(Gradients, AClonedOneMayBeKept) {
  const at::Tensor w = parameter({4}, 1);
  std::vector<at::Tensor> kept;
  const AuditReport report = audit(
      [&] {
        w.mutable_grad().reset();
        (w * 2).sum().backward();
      },
      {.between = [&](int) { kept.push_back(w.grad().clone()); }});
  EXPECT_RULES(report, "");
}

}  // namespace
}  // namespace pianola::moved_memory_test

#include <pianola/audit/testing/audit_test.hpp>

#include <ATen/ops/mm.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/tanh.h>

namespace pianola {
namespace {

using ::testing::AllOf;
using testing::finding_of;
using ::testing::HasSubstr;

class ControlFlow : public testing::AuditTest {};
PIANOLA_ON_EVERY_DEVICE(ControlFlow);

TEST_P(ControlFlow, ABranchShowsBothSidesWithTheirLines) {
  const at::Tensor x = randn({4});
  at::Tensor y;
  bool left = true;
  const int line = __LINE__ + 3;
  const auto step = [&] {
    if (left) {
      y = at::relu(x);
    } else {
      y = at::tanh(x);
    }
    y.add_(1);
  };
  const AuditReport report = audit(step, {.between = [&](int run) { left = run % 2 == 0; }});
  EXPECT_RULES(report, "PG501");
  const Finding finding = finding_of(report, "PG501");
  EXPECT_EQ(report.findings().size(), 2U) << report.to_text();  // each of the two lines was the first once
  EXPECT_THAT(finding.evidence,
              AllOf(HasSubstr("aten::relu"), HasSubstr("aten::tanh"), HasSubstr("control_flow_test.cpp:")));
  EXPECT_TRUE(finding.place.line == line || finding.place.line == line + 2) << finding.place.line;
}

TEST_P(ControlFlow, ALoopOfAnotherLength) {
  const at::Tensor x = randn({4});
  int rounds = 1;
  const AuditReport report = audit(
      [&] {
        for (int i = 0; i < rounds; ++i) x.mul_(0.5);
      },
      {.between = [&](int run) { rounds = run + 1; }});
  EXPECT_RULES(report, "PG501");
  EXPECT_THAT(finding_of(report, "PG501").what, HasSubstr("ends before aten::mul_"));
}

TEST_P(ControlFlow, InputsOfAnotherShape) {
  const at::Tensor w = randn({6, 2});
  const AuditReport report =
      audit([&](const std::vector<at::Tensor>& in) { return std::vector<at::Tensor>{at::relu(in[0].mm(w))}; },
            {{randn({4, 6})}, {randn({3, 6})}});
  EXPECT_RULES(report, "PG502");
  ASSERT_EQ(report.findings().size(), 1U) << report.to_text();
  EXPECT_THAT(report.findings()[0].what, HasSubstr("input 0 has another shape"));
  EXPECT_THAT(report.findings()[0].evidence, AllOf(HasSubstr("[4, 6]"), HasSubstr("[3, 6]")));
}

TEST_P(ControlFlow, InputsOfAnotherDtypeOrOtherStrides) {
  const auto twice = [](const std::vector<at::Tensor>& in) { return std::vector<at::Tensor>{in[0] * 2}; };
  EXPECT_RULES(audit(twice, {{randn({4, 6})}, {randn({4, 6}).to(at::kHalf)}}), "PG503");
  EXPECT_RULES(audit(twice, {{randn({4, 6})}, {randn({6, 4}).t()}}), "PG504");
}

TEST_P(ControlFlow, AShapeThatFollowsFromValuesIsOneHazard) {
  const at::Tensor x = randn({8});
  at::Tensor y;
  EXPECT_RULES(audit([&] { y = at::nonzero(x.relu()) * 2; },
                     {.between = [&](int run) { x.copy_(randn({8}, static_cast<std::uint64_t>(run) + 9)); }}),
               "PG105");
}

TEST_P(ControlFlow, AShapeThatTheHostChooses) {
  const at::Tensor x = randn({8, 4});
  at::Tensor y;
  std::int64_t rows = 4;
  const AuditReport report = audit([&] { y = x.slice(0, 0, rows) * 2; }, {.between = [&](int run) { rows = 4 + run; }});
  EXPECT_RULES(report, "PG502");
  EXPECT_THAT(finding_of(report, "PG502").what, HasSubstr("the result of aten::slice"));
}

// Operators in common on other layers: no layer was replaced.
TEST_P(ControlFlow, LayersThatAreLeftOut) {
  const std::vector<at::Tensor> layers = {randn({4, 4}, 1), randn({4, 4}, 2), randn({4, 4}, 3)};
  const at::Tensor x = randn({2, 4});
  at::Tensor y;
  int iteration = 0;
  const AuditReport report = audit(
      [&] {
        y = x;
        for (int i = 0; i < 3; ++i) {
          if (i >= iteration % 3) y = y.mm(layers[static_cast<std::size_t>(i)]).tanh();
        }
      },
      {.between = [&](int run) { iteration = run; }});
  EXPECT_RULES(report, "PG501");
}

TEST_P(ControlFlow, AnotherNumberOfResults) {
  int calls = 0;
  const at::Tensor x = randn({4});
  const AuditReport report = audit(
      [&](const std::vector<at::Tensor>& in) {
        const at::Tensor y = in[0] * 2;
        return ++calls % 2 == 0 ? std::vector<at::Tensor>{y} : std::vector<at::Tensor>{y, y};
      },
      {{x}});
  EXPECT_RULES(report, "PG505");
}

// What only the first run does is over when a capture begins, where there is a warm-up.
TEST_P(ControlFlow, WithoutAWarmupWhatHappensOnceIsNone) {
  const at::Tensor x = randn({4});
  int calls = 0;
  EXPECT_RULES(audit(
                   [&] {
                     if (calls++ == 0) x.add_(1);
                     x.mul_(0.5);
                   },
                   {.warmup = 0}),
               "");
}

}  // namespace
}  // namespace pianola

#include <pianola/audit/testing/audit_test.hpp>

#include <ATen/ops/all.h>
#include <ATen/ops/index.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/masked_select.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/unique_consecutive.h>
#include <ATen/record_function.h>

namespace pianola::host_reads_test {
namespace {

using testing::finding_of;
using ::testing::HasSubstr;
using testing::lasting_findings;
using testing::line_of;

class HostReads : public testing::AuditTest {};
PIANOLA_ON_EVERY_DEVICE(HostReads);

struct Read {
  const char* name;
  const char* rule;
  const char* op;
  std::function<void(const at::Tensor&)> step;
};

const std::vector<Read>& reads() {
  static const std::vector<Read> all = {
      {"Item", "PG101", "aten::item", [](const at::Tensor& x) { (void)x.sum().item<float>(); }},
      {"Equal", "PG101", "aten::equal", [](const at::Tensor& x) { (void)at::equal(x, x * 2); }},
      {"Condition", "PG102", "aten::is_nonzero", [](const at::Tensor& x) { (void)(x.sum() > 0).is_nonzero(); }},
      {"Nonzero", "PG105", "aten::nonzero", [](const at::Tensor& x) { (void)at::nonzero(x); }},
      {"MaskedSelect", "PG105", "aten::masked_select", [](const at::Tensor& x) { (void)at::masked_select(x, x > 0); }},
      {"Unique", "PG105", "aten::unique_consecutive", [](const at::Tensor& x) { (void)at::unique_consecutive(x); }},
      {"MaskIndex", "PG106", "aten::index", [](const at::Tensor& x) { (void)x.index({x > 0}); }},
      {"MaskWrite", "PG106", "aten::index_put_",
       [](const at::Tensor& x) {
         const at::Tensor positive = x.abs() + 1;
         (void)positive.clone().index_put_({positive > 0}, at::ones({x.numel()}, x.options()));
       }},
      {"Repeats", "PG107", "aten::repeat_interleave",
       [](const at::Tensor& x) { (void)at::repeat_interleave(at::ones({3}, x.options().dtype(at::kLong))); }},
      {"NanCheck", "PG112", "aten::is_nonzero", [](const at::Tensor& x) { (void)at::isnan(x).any().is_nonzero(); }},
      {"FiniteCheck", "PG112", "aten::item", [](const at::Tensor& x) { (void)at::isfinite(x.norm()).item<bool>(); }},
      {"UnequalToItself", "PG112", "aten::is_nonzero", [](const at::Tensor& x) { (void)x.ne(x).any().is_nonzero(); }},
  };
  return all;
}

TEST_P(HostReads, CutTheStepIntoPieces) {
  const at::Tensor x = randn({8});
  int first = 0;
  const AuditReport report = audit(
      [&] {
        at::Tensor y = x * 2;
        y = y + 1;
        first = __LINE__ + 1;
        (void)y.sum().item<float>();
        y = at::nonzero(y.exp());
        (void)(y * 2);
      },
      {.trial = false});
  ASSERT_EQ(report.cuts.size(), 2U);
  EXPECT_EQ(report.cuts[0].op, "aten::item");
  EXPECT_EQ(report.cuts[0].place.line, first);
  EXPECT_EQ(report.cuts[0].before, 3U);
  EXPECT_EQ(report.cuts[1].op, "aten::nonzero");
  EXPECT_EQ(report.cuts[1].before, 1U);
  EXPECT_THAT(report.to_text(), HasSubstr("3 graphs as it is, of 3, 1 and 1 operations, cut by aten::item at"));
}

TEST_P(HostReads, EachIsFoundWithItsRuleOperationAndLine) {
  for (const Read& read : reads()) {
    SCOPED_TRACE(read.name);
    const at::Tensor x = randn({8});
    const AuditReport report = audit([&] { read.step(x * 2); }, {.trial = false});
    EXPECT_RULES(report, read.rule);
    const Finding finding = finding_of(report, read.rule);
    EXPECT_EQ(finding.op, read.op);
    EXPECT_EQ(finding.times, 3U);
    EXPECT_EQ(finding.iteration, 1);
    EXPECT_EQ(finding.severity, Severity::breaks_capture);
    EXPECT_EQ(finding.place.file, __FILE__);
    EXPECT_FALSE(report.ok());
    EXPECT_EQ(report.exit_code(), 3);
  }
}

TEST_P(HostReads, EveryLineIsAFindingOfItsOwn) {
  const at::Tensor x = randn({8});
  const int first = __LINE__ + 2;
  const auto step = [&] {
    (void)x.sum().item<float>();
    (void)x.max().item<float>();
  };
  const AuditReport report = audit(step);
  ASSERT_EQ(lasting_findings(report).size(), 2U) << report.to_text();
  EXPECT_EQ(report.findings()[0].place.line, first);
  EXPECT_EQ(report.findings()[1].place.line, first + 1);
  EXPECT_THAT(report.findings()[0].evidence, HasSubstr("aten::sum"));
}

TEST_P(HostReads, AReadInBackwardIsToldAtTheForwardsLine) {
  const at::Tensor w = parameter({4}, 1);
  int line = 0;
  const AuditReport report = audit([&] {
    line = __LINE__ + 1;
    const at::Tensor y = w.prod();
    (void)torch::autograd::grad({y}, {w});
  });
  EXPECT_RULES(report, "PG111");
  EXPECT_EQ(finding_of(report, "PG111").place.line, line);
  EXPECT_THAT(finding_of(report, "PG111").what, HasSubstr("ProdBackward0"));
}

TEST_P(HostReads, TheScopeIsTheModule) {
  const at::Tensor x = randn({8});
  const AuditReport report = audit([&] {
    RECORD_USER_SCOPE("encoder");
    [&] {
      RECORD_USER_SCOPE("layer 3");
      (void)x.sum().item<float>();
    }();
  });
  EXPECT_EQ(finding_of(report, "PG101").module, "encoder/layer 3");
}

TEST_P(HostReads, WithoutSourcesTheOperationAloneIsNamed) {
  const at::Tensor x = randn({8});
  const AuditReport report = audit([&] { (void)x.sum().item<float>(); }, {.sources = false});
  EXPECT_RULES(report, "PG101");
  EXPECT_FALSE(finding_of(report, "PG101").place.known());
}

TEST_P(HostReads, AMaskThatOnlyFillsIsNone) {
  const at::Tensor x = randn({8});
  const at::Tensor zero = at::zeros({});
  at::Tensor y;
  const AuditReport report = audit([&] { y = x.clone().masked_fill_(x > 0, 0.0); });
  EXPECT_RULES(report, "");
}

}  // namespace
}  // namespace pianola::host_reads_test

#include <pianola/audit/testing/audit_test.hpp>

namespace pianola::results_test {
namespace {

using testing::finding_of;
using testing::lasting_findings;
using Tensors = std::vector<at::Tensor>;

class Results : public testing::AuditTest {};
PIANOLA_ON_EVERY_DEVICE(Results);

TEST_P(Results, KeptByTheStep) {
  Tensors kept;
  int line = 0;
  const AuditReport report = audit(
      [&](const Tensors& in) {
        line = __LINE__ + 1;
        const at::Tensor y = in[0] * 2;
        kept.push_back(y);
        return Tensors{y};
      },
      {{randn({4})}});
  EXPECT_RULES(report, "PG901");
  EXPECT_EQ(finding_of(report, "PG901").place.line, line);
}

TEST_P(Results, KeptOfAStepWithoutResults) {
  const at::Tensor w = parameter({4}, 1);
  Tensors losses;
  const AuditReport report = audit([&] { losses.push_back((w.exp() * 2).sum()); });
  EXPECT_RULES(report, "PG901");
  EXPECT_EQ(lasting_findings(report).size(), 1U) << report.to_text();
  EXPECT_EQ(finding_of(report, "PG901").op, "aten::sum");
}

TEST_P(Results, AnInputThatTheStepWrites) {
  const AuditReport report = audit(
      [](const Tensors& in) {
        in[0].add_(1);
        return Tensors{in[0] * 2};
      },
      {{randn({4})}});
  EXPECT_RULES(report, "PG902");
}

}  // namespace
}  // namespace pianola::results_test

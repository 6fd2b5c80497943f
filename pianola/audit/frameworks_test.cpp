#include <pianola/audit/testing/audit_test.hpp>

#include <ATen/core/grad_mode.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

namespace pianola::frameworks_test {
namespace {

using testing::finding_of;
using testing::lasting_findings;

/// Helpers of libtorch that read or freeze: told by the line that calls them.
class Frameworks : public testing::AuditTest {
 protected:
  void backward() {
    w.mutable_grad().reset();
    (w * w).sum().backward();
  }
  at::Tensor w;

  void SetUp() override {
    AuditTest::SetUp();
    if (!IsSkipped()) w = parameter({4}, 1);
  }
};
PIANOLA_ON_EVERY_DEVICE(Frameworks);

TEST_P(Frameworks, AnOptimizerThatCountsOnTheHost) {
  torch::optim::Adam adam({w}, torch::optim::AdamOptions(0.1));
  int line = 0;
  const AuditReport report = audit([&] {
    backward();
    line = __LINE__ + 1;
    adam.step();
  });
  EXPECT_RULES(report, "PG1001");
  ASSERT_EQ(lasting_findings(report).size(), 1U) << report.to_text();
  EXPECT_EQ(finding_of(report, "PG1001").place.line, line);
}

TEST_P(Frameworks, ALearningRateThatChanges) {
  torch::optim::SGD sgd({w}, torch::optim::SGDOptions(0.1).momentum(0.9));
  const auto step = [&] {
    backward();
    sgd.step();
  };
  EXPECT_RULES(audit(step), "");
  auto& options = static_cast<torch::optim::SGDOptions&>(sgd.param_groups()[0].options());
  EXPECT_RULES(audit(step, {.between = [&](int) { options.lr(options.lr() * 0.9); }}), "PG1001");
}

TEST_P(Frameworks, ClippingThatReturnsTheNorm) {
  int line = 0;
  const AuditReport report = audit([&] {
    backward();
    line = __LINE__ + 1;
    torch::nn::utils::clip_grad_norm_(std::vector{w}, 1.0);
  });
  EXPECT_RULES(report, "PG1003");
  EXPECT_EQ(finding_of(report, "PG1003").place.line, line);
}

}  // namespace
}  // namespace pianola::frameworks_test

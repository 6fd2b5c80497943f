#include <pianola/audit/testing/audit_test.hpp>
#include <pianola/trace/testing/autocast.hpp>

#include <ATen/autocast_mode.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/anomaly_mode.h>

namespace pianola::modes_test {
namespace {

using testing::finding_of;
using ::testing::HasSubstr;

class Modes : public testing::AuditTest {
 protected:
  using Autocast = testing::AutocastRegion;
};
PIANOLA_ON_EVERY_DEVICE(Modes);

TEST_P(Modes, AutocastWithItsCache) {
  const at::Tensor w = parameter({4, 4}, 1);
  const at::Tensor x = randn({2, 4});
  at::Tensor y;
  const auto step = [&] { y = at::mm(x, w); };
  const auto in_step = [&](bool cache) {
    const Autocast autocast(device().type(), cache);
    step();
  };
  {
    const Autocast outside(device().type(), true);
    const AuditReport report = audit(step, {.trial = false});
    EXPECT_RULES(report, "PG906");
    EXPECT_FALSE(report.ok());
  }
  {
    const Autocast outside(device().type(), false);
    EXPECT_RULES(audit(step), "");
  }
  EXPECT_RULES(audit([&] { in_step(true); }), "");  // the copies are made and dropped inside
  EXPECT_RULES(audit([&] { in_step(false); }), "");
}

// An outer region keeps alive what inner ones cached, whether it caches itself or not.
TEST_P(Modes, AutocastInARegionThatLastsLonger) {
  const at::Tensor w = parameter({4, 4}, 1);
  const at::Tensor x = randn({2, 4});
  at::Tensor y;
  const auto step = [&] {
    at::autocast::increment_nesting();
    at::autocast::set_autocast_enabled(device().type(), true);
    y = at::mm(x, w);
    at::autocast::set_autocast_enabled(device().type(), false);
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  };
  EXPECT_RULES(audit(step, {.names = {{"w", w}}}), "");
  at::autocast::increment_nesting();
  const AuditReport first = audit(step, {.iterations = 2, .warmup = 0, .trial = false, .names = {{"w", w}}});
  const AuditReport later = audit(step, {.trial = false, .names = {{"w", w}}});
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  EXPECT_THAT(finding_of(first, "PG906").what, HasSubstr("autocast converts 'w', and keeps the copy"));
  EXPECT_FALSE(first.ok());
  EXPECT_RULES(later, "PG906");
  EXPECT_THAT(finding_of(later, "PG906").what, HasSubstr("reads a copy of 'w' that autocast made before the step"));
}

// Whoever converts a weight once and keeps it has nothing to do with autocast.
TEST_P(Modes, AConvertedWeightOfTheUsersOwn) {
  const at::Tensor w = parameter({4, 4}, 1);
  const at::Tensor half = w.to(at::kBFloat16);
  const at::Tensor x = randn({2, 4}).to(at::kBFloat16);
  at::Tensor y;
  EXPECT_RULES(audit([&] { y = at::mm(x, half); }, {.names = {{"w", w}, {"half", half}}}), "");
  EXPECT_RULES(audit([&] { y = at::mm(x, half); }), "");
}

TEST_P(Modes, AConvertedWeightThatTheStepMakesAndKeeps) {
  const at::Tensor w = parameter({4, 4}, 1);
  const at::Tensor x = randn({2, 4}).to(at::kBFloat16);
  at::Tensor half, y;
  const auto step = [&] {
    if (!half.defined()) half = w.to(at::kBFloat16);
    y = at::mm(x, half);
  };
  const AuditReport report = audit(step, {.warmup = 0, .trial = false, .names = {{"w", w}}});
  EXPECT_EQ(report.to_text().find("PG906"), std::string::npos) << report.to_text();
}

// Switched on and off by hand, where nobody empties the cache: an earlier run made what this one reads.
TEST_P(Modes, AutocastWithoutARegion) {
  const at::Tensor w = parameter({4, 4}, 1);
  const at::Tensor x = randn({2, 4});
  at::Tensor y;
  const auto step = [&] {
    at::autocast::set_autocast_enabled(device().type(), true);
    y = at::mm(x, w);
    at::autocast::set_autocast_enabled(device().type(), false);
  };
  const AuditReport report = audit(step, {.warmup = 0, .trial = false});
  at::autocast::clear_cache();
  EXPECT_THAT(finding_of(report, "PG906").what,
              HasSubstr("reads a copy of a parameter that autocast made before the step"));
}

TEST_P(Modes, AnomalyMode) {
  const at::Tensor w = parameter({4, 4}, 1);
  at::Tensor gradient;
  const AuditReport report = audit(
      [&] {
        const torch::autograd::DetectAnomalyGuard guard;
        gradient = torch::autograd::grad({(w * 2).sum()}, {w})[0];
      },
      {.trial = false});
  EXPECT_RULES(report, "PG1008");
}

TEST_P(Modes, NothingToCapture) {
  EXPECT_RULES(audit([] {}), "PG1201");
  const at::Tensor x = randn({4});
  EXPECT_RULES(audit([&] { (void)x.view({2, 2}); }), "PG1201");
}

}  // namespace
}  // namespace pianola::modes_test

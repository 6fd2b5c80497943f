#include <pianola/audit/testing/audit_test.hpp>

#include <ATen/autocast_mode.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/anomaly_mode.h>

namespace pianola {
namespace {

using testing::finding_of;

class Modes : public testing::AuditTest {
 protected:
  struct Autocast {
    explicit Autocast(c10::DeviceType type, bool cache) : device(type) {
      at::autocast::set_autocast_enabled(device, true);
      at::autocast::set_autocast_dtype(device, at::kBFloat16);
      at::autocast::set_autocast_cache_enabled(cache);
    }
    Autocast(const Autocast&) = delete;
    Autocast& operator=(const Autocast&) = delete;
    ~Autocast() {
      at::autocast::set_autocast_enabled(device, false);
      at::autocast::clear_cache();
      at::autocast::set_autocast_cache_enabled(true);
    }
    c10::DeviceType device;
  };
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
  const AuditReport inside = audit([&] { in_step(true); });
  EXPECT_RULES(inside, "PG906");
  EXPECT_EQ(finding_of(inside, "PG906").severity, Severity::style);
  EXPECT_TRUE(inside.ok());
  EXPECT_RULES(audit([&] { in_step(false); }), "");
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
}  // namespace pianola

#include <pianola/audit/testing/audit_test.hpp>

#include <ATen/core/Formatting.h>
#include <ATen/ops/index.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/tensor.h>

#include <sstream>

namespace pianola::devices_test {
namespace {

using testing::finding_of;

TEST(Devices, OnTheTapeATensorOfAnotherDeviceIsForeign) {
  const at::Tensor x = at::ones({4});
  const at::Tensor elsewhere = at::ones({4}, at::TensorOptions(c10::kMeta));
  at::Tensor y, z;
  const AuditReport report = audit([&] {
    y = x * 2 + 1;
    z = elsewhere * 2;
  });
  EXPECT_RULES(report, "PG204");
}

/// What there is on CUDA alone.
class CudaDevices : public testing::AuditTest {
 protected:
  void SetUp() override {
    AuditTest::SetUp();
    if (!IsSkipped() && !on_cuda()) GTEST_SKIP() << "every tensor lies on the CPU";
  }
};
PIANOLA_ON_EVERY_DEVICE(CudaDevices);

struct Case {
  const char* name;
  const char* rules;
  std::function<void(const at::Tensor&)> step;
};

TEST_P(CudaDevices, EachIsFound) {
  const at::Tensor host = at::ones({8});
  const at::Tensor pinned = host.pin_memory();
  const at::Tensor one = at::full({}, 0.5);
  const at::Tensor rows = at::arange(4);
  const std::vector<Case> cases = {
      {"copy to the host", "PG103", [&](const at::Tensor& x) { (void)x.cpu(); }},
      {"copy into memory of the host", "PG103", [&](const at::Tensor& x) { host.copy_(x); }},
      {"copy into pinned memory that waits", "PG103", [&](const at::Tensor& x) { pinned.copy_(x); }},
      {"print", "PG104", [&](const at::Tensor& x) { std::ostringstream() << x; }},
      {"work on the CPU", "PG201", [&](const at::Tensor&) { (void)(host * 2); }},
      {"pageable copy", "PG202", [&](const at::Tensor& x) { x.copy_(host); }},
      {"a tensor of values of the host", "PG202",
       [&](const at::Tensor& x) {
         (void)at::tensor({1.0, 2.0}, x.options());
       }},
      {"indices of the CPU", "PG202", [&](const at::Tensor& x) { (void)x.index({rows}); }},
      {"a number on the CPU", "PG203", [&](const at::Tensor& x) { x.mul_(one); }},
      {"pinned memory", "PG205", [&](const at::Tensor&) { (void)host.pin_memory(); }},
      {"random numbers of the CPU", "PG606", [&](const at::Tensor&) { (void)at::rand({4}); }},
      {"pinned copies", "",
       [&](const at::Tensor& x) {
         x.copy_(pinned, /*non_blocking=*/true);
         pinned.copy_(x, /*non_blocking=*/true);
       }},
  };
  for (const Case& one_case : cases) {
    SCOPED_TRACE(one_case.name);
    const at::Tensor x = randn({8});
    at::Tensor y;
    EXPECT_RULES(audit(
                     [&] {
                       y = x * 2 + 1;
                       y = y.relu() + x;
                       one_case.step(x);
                     },
                     {.trial = false}),
                 one_case.rules);
  }
}

}  // namespace
}  // namespace pianola::devices_test

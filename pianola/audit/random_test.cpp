#include <pianola/audit/testing/audit_test.hpp>

#include <ATen/ops/bernoulli.h>
#include <ATen/ops/normal.h>
#include <ATen/ops/rand.h>

namespace pianola::random_test {
namespace {

using testing::finding_of;

class RandomNumbers : public testing::AuditTest {
 protected:
  static at::Generator own_generator() {
    at::Generator chosen = generator().clone();
    const std::lock_guard lock(chosen.mutex());
    chosen.set_current_seed(5);
    return chosen;
  }
};
PIANOLA_ON_EVERY_DEVICE(RandomNumbers);

TEST_P(RandomNumbers, OfAGeneratorThatNobodyNamed) {
  const at::Generator own = own_generator();
  at::Tensor y = at::zeros({4}, device());
  int line = 0;
  const auto step = [&] {
    line = __LINE__ + 1;
    y.normal_(0, 1, own);
  };
  const AuditReport report = audit(step);
  EXPECT_RULES(report, "PG601");
  EXPECT_EQ(finding_of(report, "PG601").place.line, line);
  EXPECT_RULES(audit(step, {.generators = {own}}), "");
}

TEST_P(RandomNumbers, SeededInTheStep) {
  at::Tensor y = at::zeros({4}, device());
  EXPECT_RULES(audit([&] {
                 seed(3);
                 y.normal_();
               }),
               "PG602");
  EXPECT_RULES(audit([&] {
                 y.normal_();
                 seed(4);
               }),
               "PG602");
}

TEST_P(RandomNumbers, SeededBetweenIterations) {
  at::Tensor y = at::zeros({4}, device());
  EXPECT_RULES(audit([&] { y.normal_(); }, {.between = [&](int run) { seed(static_cast<std::uint64_t>(run)); }}), "");
}

TEST_P(RandomNumbers, GeneratorsAreAsTheyWere) {
  at::Tensor y = at::zeros({4}, device());
  const at::Generator own = own_generator();
  const at::Tensor before = state_of(generator()).clone();
  const at::Tensor own_before = state_of(own).clone();
  (void)audit([&] { y.normal_().add_(at::zeros_like(y).normal_(0, 1, own)); });
  EXPECT_TRUE(testing::same(state_of(generator()), before));
  EXPECT_TRUE(testing::same(state_of(own), own_before));
}

}  // namespace
}  // namespace pianola::random_test

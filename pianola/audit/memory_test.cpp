#include <pianola/graph/memory_forecast.hpp>

#include <pianola/audit/testing/audit_test.hpp>

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>

namespace pianola::memory_test {
namespace {

using ::testing::AllOf;
using testing::finding_of;
using ::testing::HasSubstr;
using testing::line_of;

constexpr std::size_t kMiB = 1U << 20U;
constexpr std::int64_t kFloats = 1 << 18;  // a MiB

class AuditedMemory : public testing::AuditTest {
 protected:
  static at::Tensor block(std::int64_t mib) { return at::empty({mib * kFloats}, device()); }
  /// Something that computes.
  void work() {
    if (!state_.defined()) {
      state_ = at::zeros({kFloats}, device());
      source_ = at::ones({kFloats}, device());
    }
    state_.copy_(source_);
  }

 private:
  at::Tensor state_, source_;
};
PIANOLA_ON_EVERY_DEVICE(AuditedMemory);

TEST_P(AuditedMemory, OfAGraphThatFindsNoRoomIsAFinding) {
  int line = 0;
  const auto step = [&] {
    const at::Tensor small = at::empty({4 * kFloats}, device());
    line = __LINE__ + 1;
    const at::Tensor large = at::empty({40 * kFloats}, device());
    work();
  };
  const AuditReport report = audit(step, {.device = device(), .free_memory = 8 * kMiB});
  EXPECT_RULES(report, "PG908");
  EXPECT_TRUE(report.ok()) << "it may find room elsewhere";
  const Finding finding = finding_of(report, "PG908");
  EXPECT_EQ(finding.severity, Severity::memory);
  EXPECT_THAT(finding.op, HasSubstr("aten::empty"));
  EXPECT_EQ(finding.iteration, 3);
  EXPECT_EQ(line_of(finding), "memory_test.cpp:" + std::to_string(line));
  EXPECT_EQ(finding.what, "a graph of the step does not fit into the memory that is left");
  EXPECT_THAT(finding.evidence,
              AllOf(HasSubstr("of the driver and 1.0 MiB for copies, and the driver has 8.0 MiB left"),
                    HasSubstr("of 44.0 MiB in use at most this line has 40.0 MiB in 1 block")));
  EXPECT_THAT(finding.fix, HasSubstr("smaller batches"));
}

TEST_P(AuditedMemory, OfAGraphThatFitsIsNone) {
  const auto step = [&] {
    const at::Tensor scratch = block(4);
    work();
  };
  EXPECT_RULES(audit(step, {.device = device(), .free_memory = 64 * kMiB}), "");
  EXPECT_RULES(audit(step, {.device = device()}), "");
  EXPECT_RULES(audit(step, {.free_memory = 64 * kMiB}), "");  // where it computes
  EXPECT_RULES(audit(step, {.free_memory = kMiB}), "PG908");
}

TEST_P(AuditedMemory, IsThatOfTheForecast) {
  const at::Tensor weight = parameter({256, 256}, 1);
  const auto step = [&] { (void)(weight.mm(weight).relu().mm(weight) * weight).sum(); };
  const MemoryForecast forecast = predict_memory(step, device());
  const auto audited = [&](std::size_t free) {
    return audit(step, {.trial = false, .device = device(), .free_memory = free});
  };
  EXPECT_RULES(audited(forecast.pool + forecast.executable), "");
  EXPECT_RULES(audited(forecast.pool + forecast.executable - 1), "PG908");
}

TEST_P(AuditedMemory, SaysWhereAPlanFindsRoom) {
  const auto step = [&] {
    (void)block(30);
    const at::Tensor kept = block(4);
    const at::Tensor large = block(40);
    work();
  };
  const MemoryForecast forecast = predict_memory(step, device());
  ASSERT_LT(forecast.planned + 4 * kMiB, forecast.pool);
  const AuditReport report = audit(step, {.device = device(), .free_memory = forecast.planned + 4 * kMiB});
  EXPECT_RULES(report, "PG908");
  EXPECT_THAT(finding_of(report, "PG908").fix, HasSubstr("plan_memory: its pool takes 44.0 MiB"));
}

TEST_P(AuditedMemory, OfAStepThatThrowsIsNotJudged) {
  int calls = 0;
  const AuditReport report = audit(
      [&] {
        const at::Tensor large = block(40);
        work();
        if (++calls == 4) throw std::runtime_error("the last run fails");
      },
      {.device = device(), .free_memory = 1});
  EXPECT_RULES(report, "PG1202");
}

TEST_P(AuditedMemory, NamesTheOperationWhereLinesAreNotKnown) {
  const AuditReport report = audit(
      [&] {
        const at::Tensor large = block(40);
        work();
      },
      {.sources = false, .trial = false, .device = device(), .free_memory = 1});
  EXPECT_RULES(report, "PG908");
  EXPECT_THAT(finding_of(report, "PG908").op, HasSubstr("aten::empty"));
  EXPECT_THAT(finding_of(report, "PG908").evidence, HasSubstr("this operation has 40.0 MiB in 1 block"));
}

}  // namespace
}  // namespace pianola::memory_test

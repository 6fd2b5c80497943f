#include <pianola/audit/testing/audit_test.hpp>

#include <ATen/TensorIndexing.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/select.h>
#include <ATen/ops/tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <array>
#include <cstddef>

namespace pianola::numbers_test {
namespace {

using ::testing::AllOf;
using testing::finding_of;
using ::testing::HasSubstr;
using testing::lasting_findings;

class Numbers : public testing::AuditTest {};
PIANOLA_ON_EVERY_DEVICE(Numbers);

TEST_P(Numbers, AChangingLearningRateIsNamedWithBothValues) {
  const at::Tensor w = randn({4});
  double rate = 0.1;
  int line = 0;
  const AuditReport report = audit(
      [&] {
        line = __LINE__ + 1;
        w.sub_(w, rate);
      },
      {.between = [&](int) { rate *= 0.5; }});
  EXPECT_RULES(report, "PG301");
  const Finding finding = finding_of(report, "PG301");
  EXPECT_EQ(finding.place.line, line);
  EXPECT_EQ(finding.op, "aten::sub_");
  EXPECT_THAT(finding.what, HasSubstr("'alpha'"));
  EXPECT_THAT(finding.evidence, AllOf(HasSubstr("0.05 in iteration 1"), HasSubstr("0.025 in iteration 2")));
}

TEST_P(Numbers, EveryKindOfNumberIsSeen) {
  const at::Tensor x = randn({4, 6});
  at::Tensor out = at::zeros({4, 6}, x.options());
  const at::Tensor rows = at::arange(2, x.options().dtype(at::kLong));
  struct Case {
    const char* name;
    const char* rule;
    std::function<void(int)> step;
  };
  const std::vector<Case> cases = {
      {"in an expression", "PG301", [&](int i) { out.copy_(x * (1.0 + i)); }},
      {"an index of a view", "PG301", [&](int i) { out[0].copy_(x[i % 4]); }},
      {"a probability", "PG301", [&](int i) { out.copy_(at::dropout(x, 0.1 + 0.1 * i, true)); }},
      {"that fills", "PG301", [&](int i) { out.fill_(i); }},
      {"of a full tensor", "PG301",
       [&](int i) {
         out.copy_(at::full({4, 6}, i, x.options()));
       }},
      {"assigned to a part", "PG301",
       [&](int i) {
         out.index_put_({0, at::indexing::Slice()}, 1.5 * i);
       }},
      {"assigned by index", "PG301", [&](int i) { out.index_put_({rows}, 1.5 * i); }},
      {"in a list of one", "PG301",
       [&](int i) {
         at::_foreach_add_(at::TensorList({out, x}), 0.1 * i);
       }},
      {"a tensor of it", "PG303", [&](int i) { out.copy_(x * at::scalar_tensor(i, x.options())); }},
      {"a flag", "PG301", [&](int i) { out.copy_(x.cumsum(i % 2)); }},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.name);
    int iteration = 0;
    EXPECT_RULES(audit([&] { one.step(iteration); }, {.between = [&](int run) { iteration = run; }, .trial = false}),
                 one.rule);
  }
}

TEST_P(Numbers, ValuesOfTheHostThatBecomeATensor) {
  if (on_cuda()) GTEST_SKIP() << "a copy from host memory there";
  const at::Tensor out = at::zeros({2});
  std::vector<double> values = {1, 2};
  const AuditReport report = audit([&] { out.copy_(at::tensor(values)); }, {.between = [&](int) { values[1] += 1; }});
  EXPECT_RULES(report, "PG303");
  EXPECT_THAT(finding_of(report, "PG303").evidence, AllOf(HasSubstr("[1, 3]"), HasSubstr("[1, 4]")));
}

TEST_P(Numbers, MemoryOfTheUsersOwnIsLive) {
  if (on_cuda()) GTEST_SKIP() << "a copy from host memory there";
  const at::Tensor out = at::zeros({2});
  std::array<double, 2> values = {1, 2};
  EXPECT_RULES(audit([&] { out.copy_(at::from_blob(values.data(), {2}, at::kDouble)); },
                     {.between = [&](int) { values[1] += 1; }}),
               "");
}

// Blocks of one size are given out in turn, and nothing but the tensor for which they are keeps them from being used.
class BlocksInTurn final : public c10::Allocator {
 public:
  static constexpr std::size_t kNumbers = 7;
  using Block = std::array<double, kNumbers>;

  static BlocksInTurn& instance() {
    static BlocksInTurn all;  // the audit keeps a pointer to it
    return all;
  }
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes != sizeof(Block)) return c10::GetDefaultCPUAllocator()->allocate(bytes);
    Block& block = blocks_[next_++ % blocks_.size()];
    return {&block, &block, [](void*) {}, c10::Device(c10::kCPU)};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  std::array<Block, 8> blocks_ = {};
  std::size_t next_ = 0;
};

class CpuAllocatorScope {
 public:
  explicit CpuAllocatorScope(c10::Allocator& allocator) { c10::SetCPUAllocator(&allocator); }
  CpuAllocatorScope(const CpuAllocatorScope&) = delete;
  CpuAllocatorScope& operator=(const CpuAllocatorScope&) = delete;
  ~CpuAllocatorScope() { c10::SetCPUAllocator(before_); }

 private:
  c10::Allocator* before_ = c10::GetCPUAllocator();
};

TEST_P(Numbers, MemoryOfTheUsersOwnIsNotTorchsWhereATensorOfTheStepLay) {
  if (on_cuda()) GTEST_SKIP() << "a copy from host memory there";
  const at::Tensor x = at::ones({BlocksInTurn::kNumbers}, at::kDouble);
  const at::Tensor out = at::zeros({4}, at::kDouble);
  double value = 1;
  const CpuAllocatorScope scope(BlocksInTurn::instance());
  const AuditReport report = audit(
      [&] {
        auto* const freed = (x * 2).data_ptr<double>();
        *freed = value;
        out.copy_(at::from_blob(freed, {4}, at::kDouble));
      },
      {.between = [&](int) { value += 1; }, .trial = false});
  EXPECT_RULES(report, "PG303");
}

TEST_P(Numbers, TheBackwardOfAChangingNumberIsNotToldTwice) {
  const at::Tensor w = parameter({4}, 1);
  double scale = 1;
  at::Tensor gradient;
  const auto step = [&] {
    const at::Tensor y = (w * scale).sum();
    gradient = torch::autograd::grad({y}, {w})[0];
  };
  for (const bool sources : {true, false}) {
    const AuditReport report = audit(step, {.between = [&](int) { scale += 1; }, .sources = sources});
    EXPECT_RULES(report, "PG301");
    EXPECT_EQ(lasting_findings(report).size(), 1U) << report.to_text();
  }
}

TEST_P(Numbers, WhatFollowsFromAnotherShapeIsNoHazardOfItsOwn) {
  const auto step = [](const std::vector<at::Tensor>& in) {
    return std::vector<at::Tensor>{in[0].sum() / static_cast<double>(in[0].size(0))};
  };
  EXPECT_RULES(audit(step, {{randn({4, 3})}, {randn({8, 3})}}), "PG502");
}

TEST_P(Numbers, AnotherShapeDoesNotHideALearningRate) {
  const at::Tensor w = randn({3});
  double rate = 0.1;
  const auto step = [&](const std::vector<at::Tensor>& in) {
    const at::Tensor gradient = in[0].mean(0);
    w.sub_(gradient, rate);
    return std::vector<at::Tensor>{};
  };
  EXPECT_RULES(audit(step, {{randn({4, 3})}, {randn({8, 3})}}, {.between = [&](int) { rate *= 0.9; }}), "PG301 PG502");
}

TEST_P(Numbers, ABranchDoesNotHideALearningRateWhereTwoRunsTakeTheSame) {
  const at::Tensor w = randn({3});
  int iteration = 0;
  const AuditReport report = audit(
      [&] {
        if (iteration % 2 == 0) w.mul_(2);
        w.sub_(w, 0.1 * (iteration + 1));
      },
      {.between = [&](int run) { iteration = run; }});
  EXPECT_RULES(report, "PG301 PG501");
}

TEST_P(Numbers, ALoopOverParametersIsOneFinding) {
  std::vector<at::Tensor> parameters;
  for (std::uint64_t i = 0; i < 50; ++i) parameters.push_back(randn({2}, i));
  double rate = 0.1;
  const AuditReport report = audit(
      [&] {
        for (const at::Tensor& w : parameters) w.sub_(w, rate);
      },
      {.between = [&](int) { rate *= 0.5; }});
  EXPECT_RULES(report, "PG301");
  EXPECT_EQ(lasting_findings(report).size(), 1U) << report.to_text();
}

TEST_P(Numbers, ANumberThatStaysIsNone) {
  const at::Tensor x = randn({4});
  at::Tensor y;
  EXPECT_RULES(audit([&] { y = (x * 0.25 + 3).clamp(-1, 1); }), "");
}

}  // namespace
}  // namespace pianola::numbers_test

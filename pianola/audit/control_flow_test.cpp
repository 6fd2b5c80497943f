#include <pianola/audit/testing/audit_test.hpp>

#include <pianola/audit/session.hpp>

#include <ATen/ops/conv2d.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/tanh.h>

namespace pianola::control_flow_test {
namespace {

using ::testing::AllOf;
using testing::finding_of;
using ::testing::HasSubstr;
using testing::lasting_findings;

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
  EXPECT_EQ(lasting_findings(report).size(), 2U) << report.to_text();  // each of the two lines was the first once
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
  ASSERT_EQ(lasting_findings(report).size(), 1U) << report.to_text();
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

// --- What is frozen and unfrozen between runs ---

// The first operation of the backward pass that differs takes tensors of another shape, as many others, or is another one:
// what is told is the switch.
TEST_P(ControlFlow, AParameterThatIsUnfrozen) {
  const at::Tensor x = randn({3, 4});
  const at::Tensor weight = parameter({4, 2, 1, 1}, 2);
  for (const bool is_convolution : {false, true}) {
    const at::Tensor first = parameter({4, 4}, 1);
    const at::Tensor second = is_convolution ? weight : parameter({4, 2}, 2);
    const at::Tensor& frozen = is_convolution ? second : first;
    frozen.requires_grad_(false);
    int line = 0;
    const auto step = [&] {
      first.mutable_grad() = second.mutable_grad() = at::Tensor();
      line = __LINE__ + 1;
      const at::Tensor h = at::mm(x, first);
      const at::Tensor y =
          is_convolution ? at::conv2d(h.view({1, 1, 3, 4}).expand({1, 2, 3, 4}), second) : at::mm(h, second);
      y.square().sum().backward();
    };
    const AuditReport report = audit(step, {.between = [&](int run) { frozen.requires_grad_(run % 2 == 0); },
                                            .trial = false,
                                            .names = {{"first", first}, {"second", second}}});
    EXPECT_RULES(report, "PG501");
    const Finding finding = finding_of(report, "PG501");
    EXPECT_EQ(finding.what,
              is_convolution ? "'second' was unfrozen between iterations" : "'first' was unfrozen between iterations");
    EXPECT_THAT(finding.evidence, HasSubstr("requires_grad is false in iteration 1, true in iteration 2"));
    if (!is_convolution) {
      EXPECT_EQ(finding.place.line, line);
    }
    EXPECT_THAT(finding.evidence, HasSubstr("frozen between iterations"));  // and back again
    EXPECT_EQ(lasting_findings(report).size(), 1U) << report.to_text();
  }
}

// Nothing follows from it where there is no backward pass.
TEST_P(ControlFlow, WhatIsFrozenInAStepWithoutBackward) {
  const at::Tensor x = randn({3, 4});
  const at::Tensor w = parameter({4, 4}, 1);
  at::Tensor y;
  EXPECT_RULES(audit([&] { y = at::mm(x, w); }, {.between = [&](int run) { w.requires_grad_(run % 2 == 0); }}), "");
}

TEST_P(ControlFlow, AnInputThatRequiresGradNowAndThen) {
  const at::Tensor w = parameter({4, 4}, 1);
  const auto step = [&](const std::vector<at::Tensor>& in) {
    w.mutable_grad() = at::Tensor();
    (in[0].mm(w)).sum().backward();
    return std::vector<at::Tensor>{};
  };
  const AuditReport report = audit(step, {{randn({4, 4})}, {randn({4, 4}).requires_grad_()}}, {.trial = false});
  EXPECT_RULES(report, "PG501");
  EXPECT_THAT(finding_of(report, "PG501").what, HasSubstr("input 0 was"));
}

// The first gradient of an input is moved into it, the next one is added: that is its caller's.
TEST_P(ControlFlow, GradientsOfInputsAreTheCallers) {
  const at::Tensor w = randn({4, 4});
  const auto step = [&](const std::vector<at::Tensor>& in) {
    in[0].mm(w).sum().backward();
    return std::vector<at::Tensor>{};
  };
  EXPECT_RULES(audit(step, {{randn({4, 4}).requires_grad_()}, {randn({4, 4}).requires_grad_()}}, {.trial = false}), "");
}

// --- Layers in turn ---

TEST_P(ControlFlow, LayersInTurnAreNotReplaced) {
  const at::Tensor x = randn({3, 4});
  for (const std::int64_t size : {4, 5}) {
    std::vector<at::Tensor> weights = {parameter({4, 4}, 1), parameter({4, size}, 2)};
    std::size_t k = 0;
    at::Tensor gradient;
    const auto step = [&] { gradient = torch::autograd::grad({at::mm(x, weights[k]).sum()}, {weights[k]})[0]; };
    const auto between = [&](int run) { k = static_cast<std::size_t>(run + 1) % 2; };
    const AuditReport named =
        audit(step, {.between = between, .trial = false, .names = {{"w0", weights[0]}, {"w1", weights[1]}}});
    EXPECT_RULES(named, "PG501");
    EXPECT_EQ(finding_of(named, "PG501").what, "another iteration uses 'w1' instead of 'w0'");
    k = 0;
    const AuditReport unnamed = audit(step, {.between = between, .trial = false});
    EXPECT_RULES(unnamed, "PG501");
    EXPECT_THAT(finding_of(unnamed, "PG501").what, HasSubstr("another iteration uses a Float [4, "));
  }
}

// Gradients come to be in the run that first uses their parameter, and are added to in later ones, or made anew where the
// loop drops them: that follows.
TEST_P(ControlFlow, LayersInTurnWhoseGradientsAddUp) {
  const at::Tensor x = randn({3, 4});
  for (const bool drops : {false, true}) {
    std::vector<at::Tensor> weights = {parameter({4, 4}, 1), parameter({4, 4}, 2)};
    std::size_t k = 0;
    const auto step = [&] {
      const at::Tensor y = at::mm(x, weights[k]);
      y.sum().backward();
    };
    const auto between = [&](int run) {
      k = static_cast<std::size_t>(run + 1) % 2;
      if (drops) weights[0].mutable_grad() = at::Tensor();
    };
    const AuditReport report =
        audit(step, {.between = between, .trial = false, .names = {{"w0", weights[0]}, {"w1", weights[1]}}});
    EXPECT_RULES(report, "PG501");
    EXPECT_EQ(lasting_findings(report).size(), 1U) << report.to_text();
    EXPECT_THAT(finding_of(report, "PG501").what, HasSubstr("another iteration uses 'w"));
  }
}

// Of one parameter alone the difference is all that shows: what dropped its gradient came before the first run.
TEST_P(ControlFlow, AGradientThatWasDroppedBeforeTheRuns) {
  const at::Tensor x = randn({3, 4});
  const at::Tensor w = parameter({4, 4}, 1);
  const auto step = [&] { at::mm(x, w).sum().backward(); };
  const auto between = [&](int run) {
    if (run == 1) w.mutable_grad() = at::Tensor();
  };
  EXPECT_RULES(audit(step, {.between = between, .trial = false}), "PG501");
}

// One of them is frozen: no leaf that requires grad is on both sides, but both names stay.
TEST_P(ControlFlow, LayersInTurnOfWhichOneIsFrozen) {
  const at::Tensor x = randn({3, 4});
  std::vector<at::Tensor> weights = {parameter({4, 4}, 1), parameter({4, 4}, 2)};
  weights[1].requires_grad_(false);
  std::size_t k = 0;
  at::Tensor y;
  const auto step = [&] { y = at::mm(x, weights[k]); };
  const AuditReport report = audit(step, {.between = [&](int run) { k = static_cast<std::size_t>(run + 1) % 2; },
                                          .trial = false,
                                          .names = {{"w0", weights[0]}, {"w1", weights[1]}}});
  EXPECT_RULES(report, "PG501");
  EXPECT_EQ(finding_of(report, "PG501").what, "another iteration uses 'w1' instead of 'w0'");
}

// The name stands for the new one: it was replaced, though an optimizer still holds the old one.
TEST_P(ControlFlow, AParameterThatIsReplacedByAnother) {
  const at::Tensor x = randn({3, 4});
  std::vector<at::Tensor> held;
  at::Tensor w = parameter({4, 4}, 1);
  at::Tensor gradient;
  const auto replace = [&](int run) {
    held.push_back(w);
    w = parameter({4, 4}, static_cast<std::uint64_t>(run) + 5);
  };
  auditing::Session session({.trial = false});
  for (int run = 0; run < 3; ++run) {
    session.begin({.names = {{"model.head", w}}});
    gradient = torch::autograd::grad({at::mm(x, w).sum()}, {w})[0];
    session.end();
    replace(run);
  }
  const AuditReport report = session.finish();
  EXPECT_RULES(report, "PG402");
  EXPECT_THAT(finding_of(report, "PG402").what, HasSubstr("'model.head'"));
}

}  // namespace
}  // namespace pianola::control_flow_test

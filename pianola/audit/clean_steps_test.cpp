#include <pianola/audit/testing/audit_test.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/select.h>
#include <ATen/ops/slice.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>

#include <memory>

namespace pianola::clean_steps_test {
namespace {

using testing::Mlp;
using testing::Training;

/// Programs that can be captured as they are: an audit finds nothing.
class CleanSteps : public testing::AuditTest {};
PIANOLA_ON_EVERY_DEVICE(CleanSteps);

TEST_P(CleanSteps, ATrainingStepWithAnOptimizerOnTheDevice) {
  Training training(device(), 0.1);
  const AuditReport report = audit([&] { training.step(); }, {.between = [&](int run) { training.feed(run); }});
  EXPECT_RULES(report, "");
  EXPECT_EQ(report.iterations, 3);
  EXPECT_GT(report.operations, 20U);
}

// backward() with gradients that the step drops itself, and plain SGD.
struct PlainTraining {
  explicit PlainTraining(c10::Device device)
      : model(device, 2, 3), x(at::zeros({8, Mlp::kWidth}, device)), target(at::ones({8, Mlp::kWidth}, device)) {}

  void step() {
    for (at::Tensor& parameter : model.parameters) parameter.mutable_grad().reset();
    loss = at::mse_loss(model(x), target);
    loss.backward();
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : model.parameters) parameter.add_(parameter.grad(), -0.01);
  }

  Mlp model;
  at::Tensor x, target, loss;
};

TEST_P(CleanSteps, GradientsThatTheStepDropsBeforeBackward) {
  PlainTraining training(device());
  const AuditReport report = audit([&] { training.step(); }, {.between = [&](int run) { training.x.fill_(run); }});
  EXPECT_RULES(report, "");
}

TEST_P(CleanSteps, TheSameWithoutAWarmup) {
  PlainTraining training(device());
  EXPECT_RULES(audit([&] { training.step(); }, {.warmup = 0}), "");
}

TEST_P(CleanSteps, GradientsThatAreZeroedInPlace) {
  const at::Tensor w = parameter({4, 4}, 1);
  const at::Tensor x = randn({2, 4});
  const AuditReport report = audit(
      [&] {
        at::mm(x, w).sum().backward();
        const at::NoGradGuard no_grad;
        w.detach().add_(w.grad(), -0.1);
      },
      {.between = [&](int) { w.mutable_grad().zero_(); }});
  EXPECT_RULES(report, "");
}

TEST_P(CleanSteps, OptimizerStateThatTheFirstRunMakes) {
  const at::Tensor w = randn({4});
  at::Tensor momentum;
  const auto step = [&] {
    const at::Tensor gradient = w * 2;
    if (momentum.defined()) {
      momentum.mul_(0.9).add_(gradient);
    } else {
      momentum = gradient.clone();
    }
    w.sub_(momentum, 0.1);
  };
  EXPECT_RULES(audit(step), "");
  momentum.reset();
  EXPECT_RULES(audit(step, {.warmup = 0}), "");
}

TEST_P(CleanSteps, ViewsOfTheSameMemory) {
  const at::Tensor x = randn({4, 6});
  at::Tensor y;
  EXPECT_RULES(audit([&] {
                 const at::Tensor row = x.select(0, 1).view({2, 3}).t();
                 y = at::cat({row.reshape({-1}), x.slice(0, 2, 4).flatten()}) * 2;
               }),
               "");
}

TEST_P(CleanSteps, DropoutAndOtherRandomNumbers) {
  const at::Tensor x = randn({4, 6});
  at::Tensor y;
  EXPECT_RULES(audit([&] { y = at::dropout(x, 0.3, true) + at::randn({4, 6}, x.options()); }), "");
}

TEST_P(CleanSteps, ACacheThatIsWrittenInPlace) {
  const at::Tensor cache = at::zeros({4, 6}, device());
  const at::Tensor position = at::zeros({1}, at::TensorOptions(device()).dtype(at::kLong));
  const at::Tensor token = randn({1, 6});
  at::Tensor y;
  EXPECT_RULES(audit(
                   [&] {
                     cache.index_copy_(0, position, token);
                     y = at::softmax(cache, 0).sum();
                     position.add_(1).remainder_(4);
                   },
                   {.between = [&](int run) { token.fill_(run); }}),
               "");
}

TEST_P(CleanSteps, BatchesInTurn) {
  const at::Tensor w = randn({6, 2});
  const auto step = [&](const std::vector<at::Tensor>& batch) {
    return std::vector<at::Tensor>{at::mm(batch[0], w) + batch[1]};
  };
  EXPECT_RULES(audit(step, {{randn({4, 6}, 1), randn({4, 2}, 2)}, {randn({4, 6}, 3), randn({4, 2}, 4)}}), "");
  const at::Tensor all = randn({12, 6});
  const at::Tensor bias = randn({4, 2});
  EXPECT_RULES(audit(step, {{all.slice(0, 0, 4), bias}, {all.slice(0, 4, 8), bias}, {all.slice(0, 8, 12), bias}}), "");
}

TEST_P(CleanSteps, ConvolutionAndRunningStatistics) {
  const at::Tensor x = randn({2, 3, 8, 8});
  const at::Tensor w = parameter({4, 3, 3, 3}, 2);
  const at::Tensor mean = at::zeros({4}, device());
  const at::Tensor variance = at::ones({4}, device());
  EXPECT_RULES(audit([&] {
                 w.mutable_grad().reset();
                 const at::Tensor y =
                     at::batch_norm(at::conv2d(x, w), {}, {}, mean, variance, true, 0.1, 1e-5, /*cudnn_enabled=*/true);
                 y.sum().backward();
               }),
               "");
}

TEST_P(CleanSteps, Attention) {
  const at::Tensor q = parameter({2, 4, 8, 16}, 1);
  at::Tensor gradient;
  EXPECT_RULES(audit([&] {
                 const at::Tensor y = at::scaled_dot_product_attention(q, q, q, {}, 0.0, /*is_causal=*/true);
                 gradient = torch::autograd::grad({y.sum()}, {q})[0];
               }),
               "");
}

TEST_P(CleanSteps, ConstantsOfTheHost) {
  const at::Tensor x = randn({4});
  at::Tensor y;
  EXPECT_RULES(audit([&] {
                 y = at::where(x > 0, x, 0.5) * 2.5 + at::scalar_tensor(3.0, x.options());
                 y[0] = 1.0;
               }),
               "");
  if (on_cuda()) return;  // there it is a copy from host memory
  EXPECT_RULES(audit([&] { y = x * at::tensor({1.0, 2.0, 3.0, 4.0}); }), "");
}

TEST_P(CleanSteps, ResultsThatTheCallerForgetsOrReplaces) {
  const at::Tensor x = randn({4});
  at::Tensor last;
  EXPECT_RULES(audit([&] { last = x * 2; }), "");
  EXPECT_RULES(audit(
                   [&](const std::vector<at::Tensor>& in) {
                     return std::vector<at::Tensor>{in[0] * 2, x};
                   },
                   {{x}}),
               "");
}

TEST_P(CleanSteps, ATensorOnTheDeviceThatHoldsTheLearningRate) {
  const at::Tensor w = randn({4});
  const at::Tensor rate = at::full({}, 0.1, w.options());
  EXPECT_RULES(audit([&] { w.sub_(w * rate); }, {.between = [&](int run) { rate.fill_(0.1 / run); }}), "");
}

// Two models that share a parameter, and one that is frozen.
TEST_P(CleanSteps, SharedAndFrozenParameters) {
  const at::Tensor w = parameter({6, 6}, 1);
  const at::Tensor frozen = randn({6, 6}, 2);
  const at::Tensor x = randn({2, 6}, 3);
  std::vector<at::Tensor> gradients;
  EXPECT_RULES(audit([&] {
                 const at::Tensor y = at::relu(at::mm(at::mm(x, w), frozen)).mm(w.t());
                 gradients = torch::autograd::grad({y.sum()}, {w});
               }),
               "");
}

}  // namespace
}  // namespace pianola::clean_steps_test

#include "mlp.hpp"

#include "learning_rate.hpp"

#include <pianola/core/error.hpp>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <fmt/format.h>

#include <cmath>

namespace pianola::bench {
namespace {

// So small that the weights hardly move: after thousands of timed steps the work is still the same, without neurons that
// died and moments that became subnormal, which a CPU computes slowly.

}  // namespace

Mlp::Mlp(const MlpShape& shape, c10::Device device) {
  at::Generator generator = at::detail::createCPUGenerator(/*seed_val=*/1);
  const auto random = [&](at::IntArrayRef sizes) { return at::randn(sizes, generator).to(device); };
  const double scale = std::sqrt(2.0 / static_cast<double>(shape.width));
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    parameters_.push_back(random({shape.width, shape.width}).mul_(scale).requires_grad_());
    parameters_.push_back(random({shape.width}).mul_(0.1).requires_grad_());
  }
  const auto scalar = at::TensorOptions(device).dtype(at::kFloat);
  for (const at::Tensor& parameter : parameters_) {
    averages_.push_back(at::zeros_like(parameter.detach()));
    square_averages_.push_back(at::zeros_like(parameter.detach()));
    steps_.push_back(at::zeros({}, scalar));
  }
  input_ = random({shape.batch, shape.width});
  target_ = random({shape.batch, shape.width});
  learning_rate_ = at::full({}, kLearningRate, scalar);
  loss_ = at::zeros({}, scalar);
}

at::Tensor Mlp::forward() const {
  at::Tensor x = input_;
  for (std::size_t i = 0; i < parameters_.size(); i += 2) {
    if (i != 0) x = at::relu(x);
    x = at::addmm(parameters_[i + 1], x, parameters_[i]);
  }
  return x;
}

void Mlp::train_step() {
  const at::Tensor loss = at::mse_loss(forward(), target_);
  update(torch::autograd::grad({loss}, parameters_));
  loss_ = loss.detach();
}

void Mlp::update(const std::vector<at::Tensor>& gradients) {
  const c10::NoGradGuard no_grad;
  at::_foreach_add_(steps_, 1);
  at::_fused_adamw_(parameters_, gradients, averages_, square_averages_, /*max_exp_avg_sqs=*/{}, steps_, learning_rate_,
                    /*beta1=*/0.9, /*beta2=*/0.999, /*weight_decay=*/0.01, /*eps=*/1e-8, /*amsgrad=*/false,
                    /*maximize=*/false);
}

std::vector<at::Tensor> Mlp::state() const {
  std::vector<at::Tensor> state{loss_};
  for (const auto* part : {&parameters_, &averages_, &square_averages_, &steps_}) {
    state.insert(state.end(), part->begin(), part->end());
  }
  return state;
}

void check_equal(const char* what, const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (!at::equal(actual.at(i), expected[i])) {
      throw Error({.what = fmt::format("{}: tensor {} of {} differs from eager's", what, i, expected.size()),
                   .fix = "times of wrong results mean nothing: find the difference first"});
    }
  }
}

}  // namespace pianola::bench

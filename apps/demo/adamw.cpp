#include <apps/demo/adamw.hpp>

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace pianola::demo {

AdamW::AdamW(std::span<const NamedTensor> parameters, const Options& options) : options_(options) {
  const auto scalar = parameters.front().tensor.options().requires_grad(false);
  for (const auto& [name, parameter] : parameters) {
    names_.push_back(name);
    parameters_.push_back(parameter);
    averages_.push_back(at::zeros_like(parameter.detach()));
    square_averages_.push_back(at::zeros_like(parameter.detach()));
    steps_.push_back(at::zeros({}, scalar));
  }
  learning_rate_ = at::zeros({}, scalar);
}

void AdamW::step(const std::vector<at::Tensor>& gradients) {
  const c10::NoGradGuard no_grad;
  at::_foreach_add_(steps_, 1);
  at::_fused_adamw_(parameters_, gradients, averages_, square_averages_, /*max_exp_avg_sqs=*/{}, steps_, learning_rate_,
                    options_.beta1, options_.beta2, options_.weight_decay, options_.eps, /*amsgrad=*/false,
                    /*maximize=*/false);
}

void AdamW::set_learning_rate(double rate) { learning_rate_.fill_(rate); }

std::vector<NamedTensor> AdamW::state() const {
  std::vector<NamedTensor> state;
  for (std::size_t i = 0; i < names_.size(); ++i) {
    state.push_back({.name = names_[i] + ".exp_avg", .tensor = averages_[i]});
    state.push_back({.name = names_[i] + ".exp_avg_sq", .tensor = square_averages_[i]});
    state.push_back({.name = names_[i] + ".step", .tensor = steps_[i]});
  }
  state.push_back({.name = "learning_rate", .tensor = learning_rate_});
  return state;
}

double learning_rate(std::int64_t step, std::int64_t steps, double peak) {
  const std::int64_t warmup = std::clamp<std::int64_t>(steps / 20, 1, 100);
  if (step < warmup) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup);
  const double progress =
      static_cast<double>(step - warmup) / static_cast<double>(std::max<std::int64_t>(steps - warmup, 1));
  return peak * (0.55 + 0.45 * std::cos(std::numbers::pi * progress));
}

}  // namespace pianola::demo

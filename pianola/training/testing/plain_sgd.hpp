#pragma once
#include <pianola/graph/testing/device_test.hpp>
#include <pianola/training/optimizer.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Device.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace pianola::testing {

/// The least that an optimizer can be.
class PlainSgd : public Optimizer {
 public:
  explicit PlainSgd(std::vector<at::Tensor> parameters, double rate = 0.05) { add_group(std::move(parameters), rate); }

  void step(const GradScale& scale = {}) override {
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> changed;
    for (const at::Tensor& parameter : parameters()) {
      if (parameter.grad().defined()) changed.push_back(parameter);
    }
    at::_fused_sgd_(changed, gradients(), {}, 0, 0, learning_rate(), 0, false, false, false, given(scale.scale),
                    given(scale.found_inf));
  }

  [[nodiscard]] std::vector<NamedTensor> state() const override { return {{"group.0.lr", learning_rate()}}; }
  [[nodiscard]] c10::IValue state_dict() const override { return {}; }
  void load_state_dict(const c10::IValue& /*state*/) override {}

 private:
  static std::optional<at::Tensor> given(const at::Tensor& tensor) {
    return tensor.defined() ? std::optional(tensor) : std::nullopt;
  }
};

/// Two layers and a static batch; `poison` [] times the loss is what is trained on: 1, or NaN, or infinity.
class SmallTraining {
 public:
  static constexpr std::int64_t kWidth = 6;

  explicit SmallTraining(c10::Device device)
      : parameters({weight(1, device), weight(2, device)}),
        optimizer(parameters),
        x(at::zeros({4, kWidth}, device)),
        target(at::zeros({4, kWidth}, device)),
        poison(at::zeros({}, device)) {
    feed(0);
  }

  void feed(int step, double factor = 1) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(100 + static_cast<std::uint64_t>(step));
    x.copy_(at::randn({4, kWidth}, generator));
    target.copy_(at::randn({4, kWidth}, generator));
    poison.fill_(factor);
  }

  [[nodiscard]] at::Tensor forward() {
    return loss = at::mse_loss(at::mm(at::tanh(at::mm(x, parameters[0])), parameters[1]), target) * poison;
  }

  static void backward(const at::Tensor& scaled) { torch::autograd::backward({scaled}, {}); }

  [[nodiscard]] NamedTensors everything() const {
    return {{"parameter 0", parameters[0]}, {"parameter 1", parameters[1]}, {"loss", loss}};
  }
  [[nodiscard]] std::vector<at::Tensor> copies() const { return {parameters[0].clone(), parameters[1].clone()}; }

  std::vector<at::Tensor> parameters;
  PlainSgd optimizer;
  at::Tensor x, target, poison, loss;

 private:
  static at::Tensor weight(std::uint64_t seed, c10::Device device) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
    return at::randn({kWidth, kWidth}, generator).to(device).requires_grad_();
  }
};

}  // namespace pianola::testing

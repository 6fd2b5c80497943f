#pragma once
#include <pianola/graph/testing/device_test.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstdint>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

namespace pianola::testing {

/// addmm, layer_norm, gelu and dropout, `layers` times. Two with the same seed are bit-equal.
class Mlp {
 public:
  static constexpr std::int64_t kWidth = 16;

  Mlp(c10::Device device, int layers, std::uint64_t seed) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
    const auto parameter = [&](const at::Tensor& values) { parameters.push_back(values.to(device).requires_grad_()); };
    for (int layer = 0; layer < layers; ++layer) {
      parameter(at::randn({kWidth, kWidth}, generator) * 0.3);
      parameter(at::randn({kWidth}, generator) * 0.1);
      parameter(at::ones({kWidth}));
      parameter(at::zeros({kWidth}));
    }
  }

  [[nodiscard]] at::Tensor operator()(at::Tensor x, double dropout = 0) const {
    for (std::size_t i = 0; i < parameters.size(); i += 4) {
      x = at::addmm(parameters[i + 1], x, parameters[i]);
      x = at::gelu(at::layer_norm(x, {kWidth}, parameters[i + 2], parameters[i + 3]));
      if (dropout > 0) x = at::dropout(x, dropout, /*train=*/true);
    }
    return x;
  }

  std::vector<at::Tensor> parameters;
};

/// AdamW without the host: learning rate and step counters are tensors.
class AdamW {
 public:
  explicit AdamW(const std::vector<at::Tensor>& parameters) {
    for (const at::Tensor& parameter : parameters) {
      averages.push_back(at::zeros_like(parameter).detach());
      squares.push_back(at::zeros_like(parameter).detach());
      steps.push_back(at::zeros({}, parameter.options().requires_grad(false)));
    }
    learning_rate = at::full({}, 1e-2, parameters[0].options().requires_grad(false));
  }

  void step(const std::vector<at::Tensor>& parameters, const std::vector<at::Tensor>& gradients) {
    const at::NoGradGuard no_grad;
    at::_foreach_add_(steps, 1);
    at::_fused_adamw_(parameters, gradients, averages, squares, {}, steps, learning_rate, 0.9, 0.999, 0.01, 1e-8,
                      /*amsgrad=*/false, /*maximize=*/false);
  }

  std::vector<at::Tensor> averages, squares, steps;
  at::Tensor learning_rate;
};

/// A whole training step on static inputs: forward, loss, backward, AdamW. Two with the same seed are bit-equal.
class Training {
 public:
  explicit Training(c10::Device device, double dropout = 0, int layers = 3, std::uint64_t seed = 7)
      : model(device, layers, seed),
        optimizer(model.parameters),
        x(at::zeros({8, Mlp::kWidth}, device)),
        target(at::zeros({8, Mlp::kWidth}, device)),
        dropout_(dropout) {
    feed(0);
  }

  /// New inputs and another learning rate.
  void feed(int step) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(100 + static_cast<std::uint64_t>(step));
    x.copy_(at::randn({8, Mlp::kWidth}, generator));
    target.copy_(at::randn({8, Mlp::kWidth}, generator));
    optimizer.learning_rate.fill_(1e-2 / (step + 1));
  }

  void forward() { loss = at::mse_loss(output = model(x, dropout_), target); }

  /// What is captured.
  void step() {
    forward();
    gradients = torch::autograd::grad({loss}, model.parameters);
    optimizer.step(model.parameters, gradients);
  }

  /// What existed before the first step.
  [[nodiscard]] NamedTensors state() const {
    NamedTensors all;
    add(all, "parameter", model.parameters);
    add(all, "average", optimizer.averages);
    add(all, "square", optimizer.squares);
    add(all, "steps", optimizer.steps);
    return all;
  }

  /// What a step leaves behind.
  [[nodiscard]] NamedTensors everything() const {
    NamedTensors all = state();
    all.emplace_back("output", output);
    all.emplace_back("loss", loss);
    add(all, "gradient", gradients);
    return all;
  }

  Mlp model;
  AdamW optimizer;
  at::Tensor x, target, output, loss;
  std::vector<at::Tensor> gradients;

 private:
  static void add(NamedTensors& all, const std::string& name, const std::vector<at::Tensor>& tensors) {
    for (std::size_t i = 0; i < tensors.size(); ++i) all.emplace_back(name + " " + std::to_string(i), tensors[i]);
  }

  double dropout_;
};

/// Replays of a captured Training that has not been stepped yet, against a second one in eager mode.
inline void expect_replays_equal_eager(Graph& graph, Training& graphed, int steps = 3) {
  Training eager(graphed.x.device());
  for (int step = 0; step < steps; ++step) {
    eager.feed(step);
    graphed.feed(step);
    eager.step();
    graph.replay();
    expect_same(graphed.everything(), eager.everything(), "in step " + std::to_string(step));
  }
}

/// Four replays of a training with dropout, captured with these options, and its generator, against eager mode.
/// @param generator  The default one of the device.
inline void expect_dropout_like_eager(at::Generator generator, const CaptureOptions& options) {
  const c10::Device device = generator.device();
  const auto seed = [&](std::uint64_t value) {
    const std::lock_guard lock(generator.mutex());
    generator.set_current_seed(value);
  };
  const auto state = [&] {
    const std::lock_guard lock(generator.mutex());
    return generator.get_state();
  };
  seed(5);
  Training eager(device, 0.4, 4);
  for (int step = 0; step < 4; ++step) {
    eager.feed(step);
    eager.step();
  }
  const at::Tensor after = state();

  seed(5);
  Training graphed(device, 0.4, 4);
  Graph graph(device);
  graph.capture([&] { graphed.step(); }, options);
  for (int step = 0; step < 4; ++step) {
    graphed.feed(step);
    graph.replay();
  }
  expect_same(graphed.everything(), eager.everything(), "after four steps");
  EXPECT_TRUE(same(state(), after));
}

/// That a step which throws in a recording with these options leaves everything as it was, and that the next capture is whole.
inline void expect_nothing_lost_by_a_failure(c10::Device device, const CaptureOptions& options) {
  Training training(device);
  const auto state = clone_all(training.state());
  Graph graph(device);
  const auto fail = [&] {
    training.step();
    if (is_recording()) throw std::runtime_error("the step's own");
  };
  EXPECT_THROW(graph.capture(fail, options), std::runtime_error);
  expect_same(training.state(), state, "after the failure");
  graph.capture([&] { training.step(); }, options);
  expect_replays_equal_eager(graph, training);
}

}  // namespace pianola::testing

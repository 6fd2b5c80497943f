#pragma once
#include <pianola/graph/testing/device_test.hpp>
#include <pianola/training/optimizer.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sin.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstdint>
#include <string>
#include <vector>

namespace pianola::testing {

/// A loss of several parameters, with a static input that changes from step to step.
class Problem {
 public:
  explicit Problem(c10::Device device, at::ScalarType dtype = at::kFloat) : slope(at::full({}, 1, device)) {
    for (std::uint64_t i = 0; i < 4; ++i) {
      auto generator = at::make_generator<at::CPUGeneratorImpl>(i);
      parameters.push_back(
          at::randn({5, static_cast<std::int64_t>(i) + 2}, generator).to(device, dtype).requires_grad_());
    }
  }

  void feed(int step) { slope.fill_(0.5 + step); }

  /// Adds to the gradients of the parameters, `without` excepted.
  void backward(int without = -1) const {
    at::Tensor loss;
    for (int i = 0; i < static_cast<int>(parameters.size()); ++i) {
      if (i == without) continue;
      const at::Tensor part = at::sin(parameters[static_cast<std::size_t>(i)] * slope).sum();
      loss = loss.defined() ? loss + part : part;
    }
    torch::autograd::backward({loss}, {});
  }

  std::vector<at::Tensor> parameters;
  at::Tensor slope;
};

class OptimizerTest : public DeviceTest {
 protected:
  /// Parameters, state and rates.
  static NamedTensors all_of(const Optimizer& optimizer) {
    NamedTensors all;
    for (const at::Tensor& parameter : optimizer.parameters()) all.emplace_back("parameter", parameter);
    for (const NamedTensor& named : optimizer.state()) all.emplace_back(named.name, named.tensor);
    return all;
  }

  /// Of `steps` steps, each with another input and learning rate: `captured` replays what `eager` runs.
  template <typename Make>
  static void expect_replays_equal_eager(const Make& make, at::ScalarType dtype = at::kFloat, int steps = 4) {
    Problem one(device(), dtype), other(device(), dtype);
    const auto eager = make(one.parameters), graphed = make(other.parameters);
    const auto step = [](Optimizer& optimizer, const Problem& problem) {
      optimizer.zero_grad();
      problem.backward();
      optimizer.step();
    };
    Graph graph(device());
    graph.capture([&] { step(*graphed, other); });
    for (int i = 0; i < steps; ++i) {
      for (Optimizer* optimizer : {static_cast<Optimizer*>(eager.get()), static_cast<Optimizer*>(graphed.get())}) {
        optimizer->set_learning_rate(0.1 / (i + 1));
      }
      one.feed(i);
      other.feed(i);
      step(*eager, one);
      graph.replay();
      expect_same(all_of(*graphed), all_of(*eager), "in step " + std::to_string(i));
    }
  }

  static at::Tensor flag(float value) { return at::full({1}, value, device()); }
};

}  // namespace pianola::testing

#pragma once
#include <pianola/callable/graphed_callable.hpp>
#include <pianola/callable/testing/models.hpp>
#include <pianola/graph/testing/device_test.hpp>

#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace pianola::testing {

/// Tests of graphed callables. Kernels are deterministic: some backward ones differ from run to run otherwise.
class CallableTest : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
    at::globalContext().setDeterministicFillUninitializedMemory(false);
    at::set_num_threads(1);  // such small work only waits for other threads
  }
  void TearDown() override {
    at::globalContext().setDeterministicAlgorithms(false, false);
    DeviceTest::TearDown();
  }

  template <typename Net>
  static std::shared_ptr<Net> make_net() {
    torch::manual_seed(5);
    auto net = std::make_shared<Net>();
    net->to(device());
    return net;
  }

  /// Parameters, gradients, buffers, generator.
  static NamedTensors state_of_module(const torch::nn::Module& net) {
    NamedTensors all;
    for (const auto& item : net.named_parameters()) {
      all.emplace_back(item.key(), item.value());
      all.emplace_back(item.key() + ".grad", item.value().grad());
    }
    for (const auto& item : net.named_buffers()) all.emplace_back(item.key(), item.value());
    all.emplace_back("generator", state_of(generator()));
    return all;
  }

  static NamedTensors leaves_of(const c10::IValue& value, const std::string& name) {
    NamedTensors all;
    if (value.isTensor()) all.emplace_back(name, value.toTensor());
    if (value.isTuple()) {
      for (const c10::IValue& entry : value.toTupleRef().elements()) {
        const NamedTensors more = leaves_of(entry, name + "." + std::to_string(all.size()));
        all.insert(all.end(), more.begin(), more.end());
      }
    }
    return all;
  }
};

/// Adam on the device, by one fused call: what it does does not depend on who made the gradients.
class FusedAdam {
 public:
  explicit FusedAdam(std::vector<at::Tensor> parameters) : parameters_(std::move(parameters)) {
    for (const at::Tensor& parameter : parameters_) {
      averages_.push_back(torch::zeros_like(parameter).detach());
      squares_.push_back(torch::zeros_like(parameter).detach());
      steps_.push_back(torch::zeros({}, parameter.options().requires_grad(false)));
    }
    learning_rate_ = torch::full({}, 1e-2, parameters_[0].options().requires_grad(false));
  }
  void step() {
    const torch::NoGradGuard no_grad;
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& parameter : parameters_) gradients.push_back(parameter.grad());
    torch::_foreach_add_(steps_, 1);
    at::_fused_adam_(parameters_, gradients, averages_, squares_, {}, steps_, learning_rate_, 0.9, 0.999, 0.0, 1e-8,
                     /*amsgrad=*/false, /*maximize=*/false);
  }

 private:
  std::vector<at::Tensor> parameters_, averages_, squares_, steps_;
  at::Tensor learning_rate_;
};

}  // namespace pianola::testing

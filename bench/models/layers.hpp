#pragma once
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <vector>

// Private to bench/models: torch/nn takes long to compile, so that everybody else sees models through model.hpp.
namespace pianola::bench {

/// A module that makes one tensor of one.
class Layer : public torch::nn::Module {
 public:
  virtual at::Tensor forward(const at::Tensor& input) = 0;
};

using Layers = std::vector<std::shared_ptr<Layer>>;

/// Normal numbers, always the same ones: those that torch.Generator().manual_seed(1) yields in Python, too.
class InitialValues {
 public:
  explicit InitialValues(c10::Device device);
  at::Tensor normal(at::IntArrayRef sizes, double scale);

 private:
  at::Generator generator_;
  c10::Device device_;
};

/// torch::nn::Linear, with a weight that keeps the size of its input's numbers through ReLU.
class Linear : public Layer {
 public:
  Linear(InitialValues& values, std::int64_t inputs, std::int64_t outputs);
  at::Tensor forward(const at::Tensor& input) override;

 private:
  at::Tensor weight_;
  at::Tensor bias_;
};

}  // namespace pianola::bench

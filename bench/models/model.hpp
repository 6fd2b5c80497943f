#pragma once
#include <pianola/callable/callable.hpp>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace pianola::bench {

class Layer;

/// A torch::nn module that is a chain of layers; each takes a tensor and returns one of the same shape. A handle:
/// copies share the module. Two of one shape are equal bit for bit; bench/python/models.py has the same in Python.
class Model {
 public:
  /// Not empty. One layer is the model itself.
  explicit Model(std::vector<std::shared_ptr<Layer>> layers);

  [[nodiscard]] at::Tensor operator()(const at::Tensor& input) const;
  [[nodiscard]] std::vector<at::Tensor> parameters() const;

  /// What make_graphed_callables takes: the model, or its layers in order.
  [[nodiscard]] Callable whole() const;
  [[nodiscard]] std::vector<Callable> per_layer() const;

 private:
  std::vector<std::shared_ptr<Layer>> layers_;
  std::shared_ptr<Layer> whole_;
};

enum class Activation { none, relu, gelu };

struct ChainShape {
  std::int64_t layers = 16;
  std::int64_t width = 64;
  Activation activation = Activation::relu;
  Activation last = Activation::none;
};

/// Linear layers, each with its activation.
Model linear_chain(const ChainShape& shape, c10::Device device);

/// input * (sum of all parameters): with few kernels, however many parameters of 64 numbers there are.
Model parameter_sum(std::int64_t parameters, c10::Device device);

/// The same numbers at each call for one shape; none of them requires grad.
at::Tensor fixed_batch(at::IntArrayRef sizes, c10::Device device);

}  // namespace pianola::bench

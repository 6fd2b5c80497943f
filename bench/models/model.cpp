#include "model.hpp"

#include "layers.hpp"

#include <ATen/ops/gelu.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/stack.h>

#include <fmt/format.h>

namespace pianola::bench {
namespace {

class Chain : public Layer {
 public:
  explicit Chain(const Layers& layers) : layers_(layers) {
    for (std::size_t i = 0; i < layers.size(); ++i) register_module(fmt::to_string(i), layers[i]);
  }
  at::Tensor forward(const at::Tensor& input) override {
    at::Tensor x = input;
    for (const auto& layer : layers_) x = layer->forward(x);
    return x;
  }

 private:
  Layers layers_;
};

class Activated : public Linear {
 public:
  Activated(InitialValues& values, std::int64_t width, Activation activation)
      : Linear(values, width, width), activation_(activation) {}
  at::Tensor forward(const at::Tensor& input) override {
    const at::Tensor x = Linear::forward(input);
    if (activation_ == Activation::relu) return at::relu(x);
    if (activation_ == Activation::gelu) return at::gelu(x);
    return x;
  }

 private:
  Activation activation_;
};

// Without the weights all gradients would be one row, expanded, and torch's eager mode would let them share its memory.
class ParameterSum : public Layer {
 public:
  ParameterSum(InitialValues& values, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      values_.push_back(register_parameter(fmt::format("p{}", i), values.normal({64}, 1)));
    }
    weights_ = register_buffer("weights", values.normal({count, 64}, 1));
  }
  at::Tensor forward(const at::Tensor& input) override { return input * (at::stack(values_) * weights_).sum(0); }

 private:
  std::vector<at::Tensor> values_;
  at::Tensor weights_;
};

}  // namespace

Model::Model(std::vector<std::shared_ptr<Layer>> layers)
    : layers_(std::move(layers)), whole_(layers_.size() == 1 ? layers_[0] : std::make_shared<Chain>(layers_)) {}

at::Tensor Model::operator()(const at::Tensor& input) const { return whole_->forward(input); }

std::vector<at::Tensor> Model::parameters() const { return whole_->parameters(); }

Callable Model::whole() const { return whole_; }

std::vector<Callable> Model::per_layer() const { return std::vector<Callable>(layers_.begin(), layers_.end()); }

Model linear_chain(const ChainShape& shape, c10::Device device) {
  InitialValues values(device);
  Layers layers;
  for (std::int64_t i = 1; i <= shape.layers; ++i) {
    const Activation activation = i == shape.layers ? shape.last : shape.activation;
    layers.push_back(std::make_shared<Activated>(values, shape.width, activation));
  }
  return Model(std::move(layers));
}

Model parameter_sum(std::int64_t parameters, c10::Device device) {
  InitialValues values(device);
  return Model({std::make_shared<ParameterSum>(values, parameters)});
}

at::Tensor fixed_batch(at::IntArrayRef sizes, c10::Device device) { return InitialValues(device).normal(sizes, 1); }

}  // namespace pianola::bench

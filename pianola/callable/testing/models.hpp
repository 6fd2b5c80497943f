#pragma once
#include <pianola/callable/callable.hpp>

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

// Networks as people write them, each a module with a seed: two of one seed are bit-equal.
namespace pianola::testing {

struct MlpNet : torch::nn::Module {
  MlpNet() {
    first = register_module("first", torch::nn::Linear(12, 24));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({24})));
    second = register_module("second", torch::nn::Linear(24, 12));
  }
  torch::Tensor forward(const torch::Tensor& x) { return second(torch::gelu(norm(first(x)))); }
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::nn::LayerNorm norm{nullptr};
};

struct ConvNet : torch::nn::Module {
  ConvNet() {
    convolution = register_module("convolution", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3).padding(1)));
    norm = register_module("norm", torch::nn::BatchNorm2d(8));
    out = register_module("out", torch::nn::Linear(8 * 36, 5));
  }
  torch::Tensor forward(const torch::Tensor& x) { return out(torch::relu(norm(convolution(x))).flatten(1)); }
  torch::nn::Conv2d convolution{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Linear out{nullptr};
};

/// Returns all hidden states and the last state, as torch::nn::LSTM does.
struct LstmNet : torch::nn::Module {
  LstmNet() { lstm = register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(6, 10).num_layers(2))); }
  std::tuple<torch::Tensor, std::tuple<torch::Tensor, torch::Tensor>> forward(const torch::Tensor& x) {
    return lstm(x);
  }
  torch::nn::LSTM lstm{nullptr};
};

/// One pre-norm block with dropout and scaled dot product attention.
struct TransformerNet : torch::nn::Module {
  static constexpr std::int64_t kWidth = 32;
  static constexpr std::int64_t kHeads = 4;
  TransformerNet() {
    norm1 = register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    norm2 = register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    qkv = register_module("qkv", torch::nn::Linear(kWidth, 3 * kWidth));
    out = register_module("out", torch::nn::Linear(kWidth, kWidth));
    up = register_module("up", torch::nn::Linear(kWidth, 4 * kWidth));
    down = register_module("down", torch::nn::Linear(4 * kWidth, kWidth));
    dropout = register_module("dropout", torch::nn::Dropout(0.2));
  }
  torch::Tensor forward(torch::Tensor x) {
    const auto batch = x.size(0), length = x.size(1);
    const auto parts =
        qkv(norm1(x)).view({batch, length, 3, kHeads, kWidth / kHeads}).permute({2, 0, 3, 1, 4}).unbind(0);
    const auto attended =
        torch::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, is_training() ? 0.1 : 0.0,
                                            /*is_causal=*/true);
    x = x + dropout(out(attended.transpose(1, 2).reshape({batch, length, kWidth})));
    return x + dropout(down(torch::gelu(up(norm2(x)))));
  }
  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  torch::nn::Linear qkv{nullptr}, out{nullptr}, up{nullptr}, down{nullptr};
  torch::nn::Dropout dropout{nullptr};
};

/// The embedding is the output layer as well; its input is integers.
struct TiedNet : torch::nn::Module {
  TiedNet() {
    embedding = register_module("embedding", torch::nn::Embedding(17, 16));
    hidden = register_module("hidden", torch::nn::Linear(16, 16));
  }
  torch::Tensor forward(const torch::Tensor& tokens) {
    return torch::matmul(torch::tanh(hidden(embedding(tokens))), embedding->weight.t());
  }
  torch::nn::Embedding embedding{nullptr};
  torch::nn::Linear hidden{nullptr};
};

/// Runs `block` without keeping its activations, and once more in backward to get them: a reentrant checkpoint, whose
/// parameters get their gradients from the inner backward.
struct Checkpoint : torch::autograd::Function<Checkpoint> {
  using Block = std::function<torch::Tensor(const torch::Tensor&)>;
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x, const Block* block) {
    context->save_for_backward({x});
    context->saved_data["block"] = reinterpret_cast<std::int64_t>(block);
    return (*block)(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto* block = reinterpret_cast<const Block*>(context->saved_data["block"].toInt());
    const torch::Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    const torch::AutoGradMode grad_mode(true);
    const torch::Tensor y = (*block)(x);
    torch::autograd::backward({y}, {gradients[0]});
    return {x.grad(), torch::Tensor()};
  }
};

struct RecomputedNet : torch::nn::Module {
  RecomputedNet() {
    first = register_module("first", torch::nn::Linear(12, 12));
    inner = register_module("inner", torch::nn::Linear(12, 12));
    last = register_module("last", torch::nn::Linear(12, 12));
  }
  torch::Tensor forward(const torch::Tensor& x) { return last(Checkpoint::apply(torch::tanh(first(x)), &block)); }
  torch::nn::Linear first{nullptr}, inner{nullptr}, last{nullptr};
  Checkpoint::Block block = [this](const torch::Tensor& x) { return torch::gelu(inner(x)); };
};

}  // namespace pianola::testing

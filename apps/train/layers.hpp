#pragma once
#include <apps/train/model_config.hpp>
#include <apps/train/part.hpp>

#include <pianola/graph/eager.hpp>

#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

namespace pianola::train {

struct AttentionImpl : torch::nn::Module {
  explicit AttentionImpl(const LayerSizes& sizes);
  at::Tensor forward(const at::Tensor& x);

  LayerSizes sizes;
  torch::nn::Linear query_key_value, out;
  torch::nn::Dropout dropout;
};
TORCH_MODULE(Attention);

struct MlpImpl : torch::nn::Module {
  explicit MlpImpl(const LayerSizes& sizes);
  at::Tensor forward(const at::Tensor& x);

  torch::nn::Linear up, down;
  torch::nn::Dropout dropout;
};
TORCH_MODULE(Mlp);

/// The two best experts of each token, with their weights: float [tokens, 2], int64 [tokens, 2].
struct RouterImpl : torch::nn::Module {
  explicit RouterImpl(const LayerSizes& sizes);
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& tokens);

  torch::nn::Linear gate;
};
TORCH_MODULE(Router);

/// MLPs, each for the tokens that were sent to it.
struct MoeImpl : torch::nn::Module {
  explicit MoeImpl(const LayerSizes& sizes);
  at::Tensor forward(const at::Tensor& x);

  LayerSizes sizes;
  Router router_module;
  std::vector<Mlp> experts;
  Part router;
  EagerPart counted;

 private:
  at::Tensor dispatch(const at::Tensor& tokens, const at::Tensor& weights, const at::Tensor& chosen);
  at::Tensor dispatch_padded(const at::Tensor& tokens, const at::Tensor& weights, const at::Tensor& chosen);
};
TORCH_MODULE(Moe);

/// A selective state space model (Mamba): a convolution over the last few tokens, then a state that each token decays and feeds.
struct MambaImpl : torch::nn::Module {
  explicit MambaImpl(const LayerSizes& sizes);
  at::Tensor forward(const at::Tensor& x);

  static constexpr std::int64_t kState = 4, kWindow = 4;
  std::int64_t inner;
  torch::nn::Linear in, select, out;
  torch::nn::Conv1d convolution;
  at::Tensor log_decay, skip;
};
TORCH_MODULE(Mamba);

/// A pre-norm layer: a mixer of tokens, then what works on each of them.
struct BlockImpl : torch::nn::Module {
  enum class Mixer { attention, mamba };
  enum class Inner { mlp, moe };
  BlockImpl(const LayerSizes& sizes, Mixer mixer, Inner inner);
  at::Tensor forward(const at::Tensor& x);
  /// Its parts, the names beginning with `name`.
  [[nodiscard]] std::vector<NamedPart> parts(const std::string& name);

  torch::nn::LayerNorm norm1, norm2;
  std::shared_ptr<MoeImpl> moe;  // nullptr: there is none
  std::unique_ptr<Part> mixer, inner;
};
TORCH_MODULE(Block);

}  // namespace pianola::train

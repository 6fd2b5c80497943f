#include <apps/demo/char_gpt.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>
#include <utility>

namespace pianola::demo {
namespace {

constexpr double kEmbeddingDeviation = 0.1;

at::Tensor apply_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return at::layer_norm(x, {x.size(-1)}, weight, bias);
}

}  // namespace

CharGpt::CharGpt(const CharGptConfig& config, c10::Device device)
    : config_(config), options_(at::TensorOptions().dtype(at::kFloat).device(device)) {
  token_embedding_ =
      parameter("token_embedding", at::randn({config.vocabulary, config.width}, options_).mul_(kEmbeddingDeviation));
  position_embedding_ =
      parameter("position_embedding", at::randn({config.context, config.width}, options_).mul_(kEmbeddingDeviation));
  for (std::int64_t index = 0; index < config.layers; ++index) blocks_.push_back(block(index));
  final_norm_ = norm("final_norm");
  head_ = linear("head", config.width, config.vocabulary, 1.0);
  constexpr double kForbidden = -std::numeric_limits<double>::infinity();
  causal_mask_ = at::full({config.context, config.context}, kForbidden, options_).triu_(1);
}

at::Tensor CharGpt::parameter(std::string name, at::Tensor value) {
  value.set_requires_grad(true);
  parameters_.push_back({.name = std::move(name), .tensor = value});
  return value;
}

CharGpt::Affine CharGpt::norm(const std::string& name) {
  return {.weight = parameter(name + ".weight", at::ones({config_.width}, options_)),
          .bias = parameter(name + ".bias", at::zeros({config_.width}, options_))};
}

CharGpt::Affine CharGpt::linear(const std::string& name, std::int64_t in, std::int64_t out, double gain) {
  const double deviation = gain / std::sqrt(static_cast<double>(in));
  return {.weight = parameter(name + ".weight", at::randn({out, in}, options_).mul_(deviation)),
          .bias = parameter(name + ".bias", at::zeros({out}, options_))};
}

CharGpt::Block CharGpt::block(std::int64_t index) {
  const std::string name = "blocks." + std::to_string(index) + ".";
  const std::int64_t width = config_.width;
  // The residual stream sums two branches per layer: smaller weights at their ends keep its variance at one.
  const double residual = 1.0 / std::sqrt(2.0 * static_cast<double>(config_.layers));
  return {.attention_norm = norm(name + "attention_norm"),
          .query_key_value = linear(name + "query_key_value", width, 3 * width, 1.0),
          .attention_out = linear(name + "attention_out", width, width, residual),
          .mlp_norm = norm(name + "mlp_norm"),
          .mlp_in = linear(name + "mlp_in", width, 4 * width, 1.0),
          .mlp_out = linear(name + "mlp_out", 4 * width, width, residual)};
}

std::int64_t CharGpt::parameter_count() const {
  std::int64_t count = 0;
  for (const NamedTensor& parameter : parameters_) count += parameter.tensor.numel();
  return count;
}

at::Tensor CharGpt::logits(const at::Tensor& tokens, Mode mode) const {
  const bool train = mode == Mode::train;
  const at::Tensor positions = position_embedding_.narrow(0, 0, tokens.size(1));
  at::Tensor x = at::dropout(at::embedding(token_embedding_, tokens) + positions, config_.dropout, train);
  for (const Block& block : blocks_) {
    x = x + attention(block, apply_norm(x, block.attention_norm.weight, block.attention_norm.bias), train);
    x = x + mlp(block, apply_norm(x, block.mlp_norm.weight, block.mlp_norm.bias), train);
  }
  return at::linear(apply_norm(x, final_norm_.weight, final_norm_.bias), head_.weight, head_.bias);
}

// Note [Reproducible attention]
// The fused kernels behind at::scaled_dot_product_attention are not all reproducible: some add up the gradients of the
// queries in the order in which blocks happen to finish. Products, a softmax over masked scores and dropout are, in each
// run on the same device, so that eager and replay can be compared bit for bit.
at::Tensor CharGpt::attention(const Block& block, const at::Tensor& x, bool train) const {
  const std::int64_t batch = x.size(0);
  const std::int64_t length = x.size(1);
  const std::int64_t heads = config_.heads;
  const std::int64_t head_width = config_.width / heads;
  const auto by_head = at::linear(x, block.query_key_value.weight, block.query_key_value.bias)
                           .view({batch, length, 3, heads, head_width})
                           .permute({2, 0, 3, 1, 4})
                           .reshape({3, batch * heads, length, head_width})
                           .unbind(0);
  const at::Tensor mask = causal_mask_.narrow(0, 0, length).narrow(1, 0, length);
  const double scale = 1.0 / std::sqrt(static_cast<double>(head_width));
  const at::Tensor scores = at::baddbmm(mask, by_head[0], by_head[1].transpose(1, 2), 1.0, scale);
  const at::Tensor weights = at::dropout(at::softmax(scores, -1), config_.dropout, train);
  const at::Tensor mixed = at::bmm(weights, by_head[2])
                               .view({batch, heads, length, head_width})
                               .transpose(1, 2)
                               .reshape({batch, length, config_.width});
  return at::dropout(at::linear(mixed, block.attention_out.weight, block.attention_out.bias), config_.dropout, train);
}

at::Tensor CharGpt::mlp(const Block& block, const at::Tensor& x, bool train) const {
  const at::Tensor hidden = at::gelu(at::linear(x, block.mlp_in.weight, block.mlp_in.bias), gelu_);
  return at::dropout(at::linear(hidden, block.mlp_out.weight, block.mlp_out.bias), config_.dropout, train);
}

}  // namespace pianola::demo

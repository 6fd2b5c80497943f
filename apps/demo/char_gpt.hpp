#pragma once
#include <pianola/graph/options.hpp>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

namespace pianola::demo {

struct CharGptConfig {
  std::int64_t vocabulary = 96;  ///< Distinct characters.
  std::int64_t layers = 4;
  std::int64_t width = 64;  ///< Of the residual stream; a multiple of `heads`.
  std::int64_t heads = 4;
  std::int64_t context = 64;  ///< Most characters that the model looks back.
  double dropout = 0.1;
};

/// A GPT over characters: embeddings, pre-norm blocks of causal attention and MLP, a linear head. Its parameters are
/// plain float32 tensors, drawn from the device's default generator, so that equal seeds give equal models.
///
/// Every operation in it gives the same bits in each run on the same device; see Note [Reproducible attention].
class CharGpt {
 public:
  enum class Mode { train, evaluate };  ///< With dropout, or without.

  CharGpt(const CharGptConfig& config, c10::Device device);

  /// @param tokens  int64 [batch, length], length at most the context.
  /// @return        float32 [batch, length, vocabulary].
  [[nodiscard]] at::Tensor logits(const at::Tensor& tokens, Mode mode) const;

  /// The exact GELU in place of its approximation by tanh: another model with the same parameters.
  void use_exact_gelu(bool exact) noexcept { gelu_ = exact ? "none" : "tanh"; }

  [[nodiscard]] const CharGptConfig& config() const noexcept { return config_; }
  [[nodiscard]] const std::vector<NamedTensor>& parameters() const noexcept { return parameters_; }
  [[nodiscard]] std::int64_t parameter_count() const;

 private:
  struct Affine {
    at::Tensor weight;
    at::Tensor bias;
  };
  struct Block {
    Affine attention_norm, query_key_value, attention_out;
    Affine mlp_norm, mlp_in, mlp_out;
  };

  at::Tensor parameter(std::string name, at::Tensor value);
  Affine norm(const std::string& name);
  Affine linear(const std::string& name, std::int64_t in, std::int64_t out, double gain);
  Block block(std::int64_t index);
  [[nodiscard]] at::Tensor attention(const Block& block, const at::Tensor& x, bool train) const;
  [[nodiscard]] at::Tensor mlp(const Block& block, const at::Tensor& x, bool train) const;

  CharGptConfig config_;
  const char* gelu_ = "tanh";
  at::TensorOptions options_;
  std::vector<NamedTensor> parameters_;
  at::Tensor token_embedding_;
  at::Tensor position_embedding_;
  std::vector<Block> blocks_;
  Affine final_norm_;
  Affine head_;
  at::Tensor causal_mask_;  // [context, context]: 0 where a position may look, minus infinity where it may not
};

}  // namespace pianola::demo

#pragma once
#include <apps/train/layers.hpp>
#include <apps/train/model_config.hpp>

#include <torch/nn/modules/embedding.h>

#include <cstdint>
#include <string>
#include <vector>

namespace pianola::train {

/// An image of a text: a glyph of kGlyph x kGlyph pixels for each token, in a row.
inline constexpr std::int64_t kGlyph = 6;

/// A small model that predicts the next character of a text.
struct ModelImpl : torch::nn::Module {
  explicit ModelImpl(const ModelConfig& config);
  /// @param inputs  tokens and targets, int64 [batch, length]; of a vision model an image as well, float [batch, kGlyph, kGlyph *
  ///                length].
  at::Tensor loss(const std::vector<at::Tensor>& inputs);
  /// Whole layers, and the parts of them.
  [[nodiscard]] std::vector<NamedPart> parts();

  ModelConfig config;
  torch::nn::Embedding tokens, places;
  torch::nn::LayerNorm norm;
  torch::nn::Linear patches, head;
  std::vector<Block> blocks;   // of the text
  std::vector<Block> encoder;  // of the image
  std::vector<Part> layers;    // of the encoder, then of the text
  std::vector<std::string> names;

 private:
  void add(std::vector<Block>& list, const std::string& name, Block block);
};
TORCH_MODULE(Model);

}  // namespace pianola::train

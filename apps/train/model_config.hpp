#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pianola::train {

/// How tokens come to their experts.
enum class Dispatch {
  counted,  ///< The host asks how many there are for each expert.
  eager,    ///< The same, as a part that stays eager in a graph of the whole step.
  padded,   ///< Each expert takes a fixed number.
};

struct LayerSizes {
  std::int64_t width = 64;
  std::int64_t heads = 4;
  std::int64_t experts = 4;
  double dropout = 0.1;
  bool causal = true;
  Dispatch dispatch = Dispatch::counted;
  double capacity = 1.25;  ///< Of a padded expert, relative to an even share.
};

enum class Kind {
  dense,   ///< Attention and MLP.
  moe,     ///< Every second layer has experts.
  hybrid,  ///< Mamba and attention in turn.
  vision,  ///< Reads a text off an image: an encoder of patches, whose results stand before the text.
};
/// @throws UsageError  There is no such kind.
[[nodiscard]] Kind kind_of(std::string_view name);
/// "dense"; in the order of Kind.
[[nodiscard]] std::vector<std::string> kinds();

struct ModelConfig {
  Kind kind = Kind::dense;
  std::int64_t vocabulary = 96;
  std::int64_t layers = 4;
  std::int64_t context = 32;  ///< Tokens of a text.
  LayerSizes sizes = {};
};

}  // namespace pianola::train

#include <apps/train/model.hpp>

#include <pianola/core/error.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace pianola::train {

std::vector<std::string> kinds() { return {"dense", "moe", "hybrid", "vision"}; }

Kind kind_of(std::string_view name) {
  const std::vector<std::string> known = kinds();
  const auto found = std::find(known.begin(), known.end(), name);
  if (found == known.end()) {
    throw UsageError({.what = fmt::format("there is no model '{}'", name),
                      .fix = fmt::format("name one of {}", fmt::join(known, ", "))});
  }
  return static_cast<Kind>(found - known.begin());
}

ModelImpl::ModelImpl(const ModelConfig& config_)
    : config(config_),
      tokens(register_module("tokens", torch::nn::Embedding(config.vocabulary, config.sizes.width))),
      places(register_module("places", torch::nn::Embedding(2 * config.context, config.sizes.width))),
      norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({config.sizes.width})))),
      patches(nullptr),
      head(register_module("head", torch::nn::Linear(config.sizes.width, config.vocabulary))) {
  layers.reserve(static_cast<std::size_t>(2 * config.layers));
  if (config.kind == Kind::vision) {
    patches = register_module("patches", torch::nn::Linear(kGlyph * kGlyph, config.sizes.width));
    LayerSizes whole = config.sizes;
    whole.causal = false;
    for (std::int64_t i = 0; i < config.layers / 2; ++i) {
      add(encoder, fmt::format("encoder.{}", i), Block(whole, BlockImpl::Mixer::attention, BlockImpl::Inner::mlp));
    }
  }
  for (std::int64_t i = 0; i < config.layers; ++i) {
    const bool is_odd = i % 2 == 1;
    const auto mixer = config.kind == Kind::hybrid && !is_odd ? BlockImpl::Mixer::mamba : BlockImpl::Mixer::attention;
    const auto inner = config.kind == Kind::moe && is_odd ? BlockImpl::Inner::moe : BlockImpl::Inner::mlp;
    add(blocks, fmt::format("layers.{}", i), Block(config.sizes, mixer, inner));
  }
}

void ModelImpl::add(std::vector<Block>& list, const std::string& name, Block block) {
  std::string module_name = name;
  std::replace(module_name.begin(), module_name.end(), '.', '_');
  list.push_back(register_module(module_name, std::move(block)));
  layers.emplace_back("layer", list.back());
  names.push_back(name);
}

at::Tensor ModelImpl::loss(const std::vector<at::Tensor>& inputs) {
  const at::Tensor &ids = inputs.at(0), &targets = inputs.at(1);
  const auto positions = [&](std::int64_t from, std::int64_t count) {
    return places(at::arange(from, from + count, ids.options()));
  };
  const std::int64_t length = ids.size(1);
  at::Tensor x = tokens(ids) + positions(0, length);
  std::size_t layer = 0;
  if (config.kind == Kind::vision) {
    const at::Tensor cells = inputs.at(2).view({ids.size(0), kGlyph, length, kGlyph}).permute({0, 2, 1, 3});
    at::Tensor seen =
        patches(cells.reshape({ids.size(0), length, kGlyph * kGlyph})) + positions(config.context, length);
    for (; layer < encoder.size(); ++layer) seen = layers[layer](seen);
    x = at::cat({seen, x}, 1);
  }
  for (; layer < layers.size(); ++layer) x = layers[layer](x);
  if (config.kind == Kind::vision) x = x.narrow(1, length, length);
  return at::cross_entropy_loss(head(norm(x)).flatten(0, 1), targets.flatten());
}

std::vector<NamedPart> ModelImpl::parts() {
  std::vector<NamedPart> all;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    all.push_back({.name = names[i], .part = &layers[i]});
    Block& block = i < encoder.size() ? encoder[i] : blocks[i - encoder.size()];
    for (NamedPart& one : block->parts(names[i])) all.push_back(std::move(one));
  }
  return all;
}

}  // namespace pianola::train

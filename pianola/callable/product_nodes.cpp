#include <pianola/callable/product_nodes.hpp>

#include <torch/csrc/autograd/generated/Functions.h>

#include <algorithm>
#include <vector>

namespace pianola::callable {

namespace autograd = torch::autograd;
namespace generated = torch::autograd::generated;

namespace {

// Of a node of this class whether neither of the tensors that it has saved has hooks.
template <typename Product, autograd::SavedVariable Product::*one, autograd::SavedVariable Product::*other>
bool is_plain(const autograd::Node& node) {
  const auto* const product = dynamic_cast<const Product*>(&node);
  return product != nullptr && !(product->*one).has_hooks() && !(product->*other).has_hooks();
}

template <typename... Layouts>
bool is_one_of(const autograd::Node& node) {
  return (... || (dynamic_cast<const Layouts*>(&node) != nullptr));
}

std::vector<bool (*)(const autograd::Node&)>& known_products() {
  static auto& known = *new std::vector<bool (*)(const autograd::Node&)>;
  return known;
}

}  // namespace

bool know_divisible_product(bool (*is_one)(const autograd::Node&)) {
  known_products().push_back(is_one);
  return true;
}

bool is_divisible_product(const autograd::Node& node) {
  using namespace generated;
  return is_plain<AddmmBackward0, &AddmmBackward0::mat1_, &AddmmBackward0::mat2_>(node) ||
         is_plain<MmBackward0, &MmBackward0::self_, &MmBackward0::mat2_>(node) ||
         is_plain<BmmBackward0, &BmmBackward0::self_, &BmmBackward0::mat2_>(node) ||
         is_plain<BaddbmmBackward0, &BaddbmmBackward0::batch1_, &BaddbmmBackward0::batch2_>(node) ||
         is_plain<LinearBackward0, &LinearBackward0::input_, &LinearBackward0::weight_>(node) ||
         is_plain<ConvolutionBackward0, &ConvolutionBackward0::input_, &ConvolutionBackward0::weight_>(node) ||
         std::any_of(known_products().begin(), known_products().end(), [&](auto is_one) { return is_one(node); });
}

bool is_layout_change(const autograd::Node& node) {
  using namespace generated;
  return is_one_of<TBackward0, TransposeBackward0, PermuteBackward0, ViewBackward0, UnsafeViewBackward0,
                   ReshapeAliasBackward0, UnsqueezeBackward0, SqueezeBackward0, SqueezeBackward1, ExpandBackward0,
                   AliasBackward0, ToCopyBackward0, CloneBackward0>(node);
}

}  // namespace pianola::callable

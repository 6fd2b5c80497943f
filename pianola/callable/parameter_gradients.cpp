#include <pianola/callable/parameter_gradients.hpp>

#include <pianola/trace/quiet_scope.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/view_as_real.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

namespace pianola::callable {
namespace {

constexpr std::size_t kNoBlock = std::numeric_limits<std::size_t>::max();
// As torch's allocators: vectorized kernels want 16, and a boundary of its own for each tensor costs little.
constexpr std::int64_t kAlignment = 256;

// The layout that autograd gives to the gradient of this parameter (AccumulateGrad's layout contract).
std::vector<std::int64_t> gradient_strides(const at::Tensor& parameter) {
  if (parameter.is_non_overlapping_and_dense()) return parameter.strides().vec();
  std::vector<std::int64_t> strides(static_cast<std::size_t>(parameter.dim()), 1);
  for (std::size_t i = strides.size(); i-- > 1;) {
    strides[i - 1] = strides[i] * std::max<std::int64_t>(parameter.size(static_cast<std::int64_t>(i)), 1);
  }
  return strides;
}

// The same memory, with its own version counter and no base: not a view in autograd's sense.
at::Tensor alias_of(const at::Tensor& tensor) {
  return at::Tensor(tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(
      /*version_counter=*/c10::VariableVersion(0), /*allow_tensor_metadata_change=*/true));
}

at::Tensor place(const at::Tensor& block, std::int64_t offset, at::IntArrayRef sizes, at::IntArrayRef strides) {
  at::Tensor result = alias_of(block);
  result.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  result.unsafeGetTensorImpl()->set_storage_offset(offset);
  return result;
}

void fill_with_minus_zero(const at::Tensor& tensor) {
  (tensor.is_complex() ? at::view_as_real(tensor) : tensor).fill_(-0.0);
}

std::vector<at::Tensor> select(const std::vector<at::Tensor>& from, const std::vector<std::size_t>& which) {
  std::vector<at::Tensor> result;
  result.reserve(which.size());
  for (const std::size_t i : which) result.push_back(from[i]);
  return result;
}

std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  result.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    result.push_back(at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options()));
  }
  if (!result.empty()) at::_foreach_copy_(result, tensors);
  return result;
}

}  // namespace

ParameterGradients::ParameterGradients(std::vector<at::Tensor> parameters, const std::vector<at::Tensor>& before,
                                       GradPolicy policy)
    : policy_(policy), parameters_(std::move(parameters)) {
  make_buffers(before);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    meta_.push_back(torch::autograd::impl::materialize_autograd_meta(parameters_[i]));
    const bool adopted = block_of_[i] == kNoBlock;
    exposed_.push_back(adopted ? before[i] : alias_of(buffers_[i]));
    address_.push_back(trace::address_of(buffers_[i]));
  }
}

void ParameterGradients::make_buffers(const std::vector<at::Tensor>& before) {
  struct Block {
    std::size_t index;
    std::int64_t elements = 0;
  };
  std::map<c10::ScalarType, Block> blocks;
  std::vector<std::int64_t> offsets(parameters_.size());
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& parameter = parameters_[i];
    const bool adopt = policy_ == GradPolicy::accumulate && before[i].defined() && before[i].layout() == at::kStrided &&
                       before[i].scalar_type() == parameter.scalar_type();
    if (adopt) {
      block_of_.push_back(kNoBlock);
      continue;
    }
    Block& block = blocks.try_emplace(parameter.scalar_type(), Block{.index = blocks.size()}).first->second;
    const std::int64_t step = std::max<std::int64_t>(kAlignment / static_cast<std::int64_t>(parameter.itemsize()), 1);
    offsets[i] = block.elements;
    block.elements += (parameter.numel() + step - 1) / step * step;
    block_of_.push_back(block.index);
  }
  blocks_.resize(blocks.size());
  in_block_.resize(blocks.size());
  for (const auto& [dtype, block] : blocks) {
    blocks_[block.index] = at::empty({block.elements}, parameters_[0].options().requires_grad(false).dtype(dtype));
    bytes_ += blocks_[block.index].nbytes();
    fill_with_minus_zero(blocks_[block.index]);
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (block_of_[i] == kNoBlock) {
      buffers_.push_back(alias_of(before[i]));
    } else {
      ++in_block_[block_of_[i]];
      buffers_.push_back(
          place(blocks_[block_of_[i]], offsets[i], parameters_[i].sizes(), gradient_strides(parameters_[i])));
    }
  }
}

void ParameterGradients::record(const std::vector<at::Tensor>& computed) const {
  if (computed.empty()) return;
  if (policy_ == GradPolicy::accumulate) {
    at::_foreach_add_(buffers_, computed);
  } else {
    at::_foreach_copy_(buffers_, computed);
  }
}

const at::Tensor* ParameterGradients::hooked() const noexcept {
  for (std::size_t i = 0; i < meta_.size(); ++i) {
    if (!meta_[i]->hooks_.empty() || meta_[i]->post_acc_grad_hooks_ != nullptr) return &parameters_[i];
  }
  return nullptr;
}

// `p.grad` may be the tensor we gave and yet look at other memory (p.grad.data = ...).
bool ParameterGradients::is_ours(std::size_t i) const {
  const at::Tensor& gradient = meta_[i]->grad_;
  return gradient.is_same(exposed_[i]) && trace::address_of(gradient) == address_[i];
}

// Somebody kept the gradient that was ours, or a view of one of the block: it must not change under their hands.
bool ParameterGradients::is_held_elsewhere(std::size_t i) const {
  if (exposed_[i].use_count() > 1) return true;
  // A buffer and an exposed tensor each, and the block itself.
  const std::size_t ours = block_of_[i] == kNoBlock ? 2 : 1 + 2 * in_block_[block_of_[i]];
  return static_cast<std::size_t>(buffers_[i].storage().use_count()) > ours;
}

void ParameterGradients::before_replay(bool wanted) {
  if (!wanted) {
    if (policy_ != GradPolicy::clone) save(all());
    return;
  }
  switch (policy_) {
    case GradPolicy::accumulate:
      return prepare_to_add();
    case GradPolicy::clone:
      return;
    case GradPolicy::alias:
      return move_out_of_alias();
  }
}

void ParameterGradients::after_replay(bool wanted) {
  if (wanted && policy_ != GradPolicy::accumulate) {
    hand_out(all());
  } else if (wanted && !to_hand_out_.empty()) {
    hand_out(to_hand_out_);
    to_hand_out_.clear();
  }
  if (to_restore_.empty()) [[likely]]
    return;
  const trace::QuietScope quiet;
  at::_foreach_copy_(select(buffers_, to_restore_), saved_);
  to_restore_.clear();
  saved_.clear();
}

void ParameterGradients::prepare_to_add() {
  std::vector<std::size_t> others;
  for (std::size_t i = 0; i < meta_.size(); ++i) {
    if (!is_ours(i)) [[unlikely]]
      others.push_back(i);
  }
  if (others.empty()) [[likely]]
    return;
  std::vector<std::size_t> held;
  std::vector<std::size_t> to_expose;
  for (const std::size_t i : others) {
    const bool is_held = is_held_elsewhere(i);
    if (is_held) held.push_back(i);
    (meta_[i]->grad_.defined() || is_held ? to_hand_out_ : to_expose).push_back(i);
  }
  save(std::move(held));
  clear(others);
  for (const std::size_t i : to_expose) expose(i);
}

// The sum so far gets memory of its own before the graph overwrites the buffer.
void ParameterGradients::move_out_of_alias() {
  std::vector<std::size_t> ours;
  for (std::size_t i = 0; i < meta_.size(); ++i) {
    if (is_ours(i)) ours.push_back(i);
  }
  if (ours.empty()) return;
  const trace::QuietScope quiet;
  std::vector<at::Tensor> moved = copies_of(select(buffers_, ours));
  for (std::size_t k = 0; k < ours.size(); ++k) meta_[ours[k]]->grad_ = std::move(moved[k]);
}

void ParameterGradients::clear(const std::vector<std::size_t>& which) const {
  const trace::QuietScope quiet;
  std::vector<std::size_t> counts(blocks_.size());
  for (const std::size_t i : which) {
    if (block_of_[i] != kNoBlock) ++counts[block_of_[i]];
  }
  for (std::size_t block = 0; block < blocks_.size(); ++block) {
    if (counts[block] == in_block_[block]) fill_with_minus_zero(blocks_[block]);
  }
  for (const std::size_t i : which) {
    const bool done = block_of_[i] != kNoBlock && counts[block_of_[i]] == in_block_[block_of_[i]];
    if (!done) fill_with_minus_zero(buffers_[i]);
  }
}

void ParameterGradients::expose(std::size_t i) { meta_[i]->grad_ = exposed_[i] = alias_of(buffers_[i]); }

void ParameterGradients::save(std::vector<std::size_t> which) {
  if (which.empty()) return;
  const trace::QuietScope quiet;
  to_restore_ = std::move(which);
  saved_ = copies_of(select(buffers_, to_restore_));
}

// As AccumulateGrad: an undefined gradient becomes the result, a defined one gets it added in place.
void ParameterGradients::hand_out(const std::vector<std::size_t>& which) {
  const trace::QuietScope quiet;
  std::vector<at::Tensor> defined, to_add;
  std::vector<std::size_t> undefined;
  for (const std::size_t i : which) {
    if (meta_[i]->grad_.defined()) {
      defined.push_back(meta_[i]->grad_);
      to_add.push_back(buffers_[i]);
    } else {
      undefined.push_back(i);
    }
  }
  if (!defined.empty()) at::_foreach_add_(defined, to_add);
  if (policy_ == GradPolicy::alias) {
    for (const std::size_t i : undefined) expose(i);
  } else {
    std::vector<at::Tensor> fresh = copies_of(select(buffers_, undefined));
    for (std::size_t k = 0; k < undefined.size(); ++k) meta_[undefined[k]]->grad_ = std::move(fresh[k]);
  }
}

std::vector<std::size_t> ParameterGradients::all() const {
  std::vector<std::size_t> indices(meta_.size());
  std::iota(indices.begin(), indices.end(), std::size_t{0});
  return indices;
}

std::vector<at::Tensor> ParameterGradients::copies() const {
  const trace::QuietScope quiet;
  return copies_of(buffers_);
}

}  // namespace pianola::callable

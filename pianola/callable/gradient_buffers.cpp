#include <pianola/callable/gradient_buffers.hpp>

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_neg.h>
#include <ATen/ops/_foreach_zero.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/view_as_real.h>

#include <algorithm>
#include <map>
#include <utility>

namespace pianola::callable {
namespace {

// Vectorized kernels want 16 bytes, and a boundary of its own for each tensor costs little.
constexpr std::int64_t kAlignment = 256;

// AccumulateGrad's layout contract.
std::vector<std::int64_t> gradient_strides(const at::Tensor& parameter) {
  if (parameter.is_non_overlapping_and_dense()) return parameter.strides().vec();
  std::vector<std::int64_t> strides(static_cast<std::size_t>(parameter.dim()), 1);
  for (std::size_t i = strides.size(); i-- > 1;) {
    strides[i - 1] = strides[i] * std::max<std::int64_t>(parameter.size(static_cast<std::int64_t>(i)), 1);
  }
  return strides;
}

at::Tensor place(const at::Tensor& block, std::int64_t offset, at::IntArrayRef sizes, at::IntArrayRef strides) {
  at::Tensor result = alias_of(block);
  result.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  result.unsafeGetTensorImpl()->set_storage_offset(offset);
  return result;
}

}  // namespace

at::Tensor alias_of(const at::Tensor& tensor) {
  return at::Tensor(tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(
      /*version_counter=*/c10::VariableVersion(0), /*allow_tensor_metadata_change=*/true));
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

void fill_with_minus_zero(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> real;
  real.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) real.push_back(tensor.is_complex() ? at::view_as_real(tensor) : tensor);
  if (real.size() == 1) {
    real.front().fill_(-0.0);
  } else if (!real.empty()) {
    at::_foreach_zero_(real);
    at::_foreach_neg_(real);
  }
}

GradientBuffers::GradientBuffers(const std::vector<at::Tensor>& parameters, const std::vector<at::Tensor>& own) {
  std::map<c10::ScalarType, std::int64_t> elements;  // of the blocks
  std::vector<std::int64_t> offsets(parameters.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (own[i].defined()) continue;
    const std::int64_t step =
        std::max<std::int64_t>(kAlignment / static_cast<std::int64_t>(parameters[i].itemsize()), 1);
    std::int64_t& end = elements[parameters[i].scalar_type()];
    offsets[i] = end;
    end += (parameters[i].numel() + step - 1) / step * step;
  }
  std::map<c10::ScalarType, at::Tensor> blocks;
  for (const auto& [dtype, count] : elements) {
    const at::TensorOptions options = parameters[0].options().requires_grad(false).dtype(dtype);
    whole_.push_back(blocks[dtype] = at::empty({count}, options));
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    own_.push_back(own[i].defined());
    if (own[i].defined()) {
      whole_.push_back(tensors_.emplace_back(alias_of(own[i])));
    } else {
      tensors_.push_back(place(blocks[parameters[i].scalar_type()], offsets[i], parameters[i].sizes(),
                               gradient_strides(parameters[i])));
    }
  }
  blocks.clear();
}

std::size_t GradientBuffers::bytes() const noexcept {
  std::size_t bytes = 0;
  for (const at::Tensor& part : whole_) bytes += part.nbytes();
  return bytes;
}

void GradientBuffers::clear(const std::vector<std::size_t>& which) const {
  fill_with_minus_zero(which.size() == tensors_.size() ? whole_ : select(tensors_, which));
}

// What else refers to a block is nobody at first; to memory that the caller brought, the caller may.
void GradientBuffers::count_references(std::size_t aliases) {
  const bool first = before_graphs_.empty();
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const std::size_t now = trace::references_to(tensors_[i].storage());
    if (first) {
      before_graphs_.push_back(now);
      references_.push_back(0);
    }
    references_[i] = (own_[i] ? 2 + aliases - 1 : before_graphs_[i]) + now - before_graphs_[i];
  }
}

}  // namespace pianola::callable

#include <pianola/callable/routed_gradients.hpp>

#include <pianola/trace/quiet_scope.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <ATen/ops/_foreach_copy.h>

#include <algorithm>
#include <utility>

namespace pianola::callable {

RoutedGradients::RoutedGradients(std::vector<at::Tensor> parameters, HandOut kind)
    : kind_(kind),
      parameters_(std::move(parameters)),
      buffers_(parameters_, /*own=*/std::vector<at::Tensor>(parameters_.size())) {}

void RoutedGradients::record(const std::vector<at::Tensor>& computed) const {
  at::_foreach_copy_(buffers_.tensors(), computed);
}

// The tensors stay the objects that they are: whoever has one sees no change.
void RoutedGradients::vacate_buffers() {
  if (kind_ == HandOut::copies) return;
  const std::vector<at::Tensor> tenants = in_buffers();
  handed_out_.clear();
  if (tenants.empty()) return;
  const trace::QuietScope quiet;
  const std::vector<at::Tensor> moved = copies_of(tenants);
  for (std::size_t i = 0; i < tenants.size(); ++i) {
    tenants[i].unsafeGetTensorImpl()->shallow_copy_from(moved[i].getIntrusivePtr());
  }
}

std::vector<at::Tensor> RoutedGradients::in_buffers() const {
  std::vector<at::Tensor> result;
  const auto add = [&](const at::Tensor& tensor) {
    if (is_in_buffers(tensor)) result.push_back(tensor);
  };
  for (const trace::WeakTensor& handle : handed_out_) {
    if (auto impl = handle.lock()) add(at::Tensor(std::move(impl)));
  }
  for (const at::Tensor& parameter : parameters_) add(parameter.grad());
  return result;
}

bool RoutedGradients::is_in_buffers(const at::Tensor& tensor) const {
  if (!tensor.defined()) return false;
  return std::any_of(buffers_.whole().begin(), buffers_.whole().end(),
                     [&](const at::Tensor& block) { return trace::storage_of(tensor) == trace::storage_of(block); });
}

std::vector<at::Tensor> RoutedGradients::hand_out(const std::vector<std::size_t>& which) {
  const trace::QuietScope quiet;
  std::vector<at::Tensor> result = select(buffers_.tensors(), which);
  if (kind_ == HandOut::copies) return copies_of(result);
  for (at::Tensor& gradient : result) {
    gradient = alias_of(gradient);
    handed_out_.emplace_back(gradient.getIntrusivePtr());
  }
  return result;
}

}  // namespace pianola::callable

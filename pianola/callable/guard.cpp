#include <pianola/callable/guard.hpp>

#include <pianola/trace/describe.hpp>
#include <pianola/trace/plain_check.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace pianola::callable {
namespace {

std::string list(at::IntArrayRef values) { return fmt::format("[{}]", fmt::join(values, ", ")); }

const char* yes_no(bool value) { return value ? "yes" : "no"; }

}  // namespace

InputGuard::InputGuard(const at::Tensor& sample, bool gradients)
    : sizes_(sample.sizes().vec()),
      strides_(sample.strides().vec()),
      dtype_(sample.scalar_type()),
      device_(sample.device()),
      gradients_(gradients),
      requires_grad_(sample.requires_grad()) {}

bool InputGuard::accepts(const at::Tensor& input) const {
  return input.defined() && trace::oddity_of_input(input) == trace::Oddity::none &&
         input.sizes() == at::IntArrayRef(sizes_) && input.scalar_type() == dtype_ && input.device() == device_ &&
         (!gradients_ || input.requires_grad() == requires_grad_) && same_strides(input);
}

// Kernels are chosen by strides too; those of dimensions of one element mean nothing.
bool InputGuard::same_strides(const at::Tensor& input) const {
  if (input.strides() == at::IntArrayRef(strides_)) return true;
  for (std::size_t i = 0; i < strides_.size(); ++i) {
    if (sizes_[i] > 1 && input.strides()[i] != strides_[i]) return input.numel() == 0;
  }
  return true;
}

std::vector<std::string> InputGuard::differences(const at::Tensor& input) const {
  if (!input.defined()) return {"captured a tensor, received None"};
  std::vector<std::string> result;
  const auto differs = [&](const char* what, const std::string& captured, const std::string& received) {
    if (captured != received) result.push_back(fmt::format("{}: captured {}, received {}", what, captured, received));
  };
  if (const auto odd = trace::oddity_of_input(input); odd != trace::Oddity::none) {
    return {fmt::format("captured a plain tensor, received {}", trace::in_words(odd, input))};
  }
  differs("shape", list(sizes_), list(input.sizes()));
  differs("dtype", c10::toString(dtype_), c10::toString(input.scalar_type()));
  differs("device", device_.str(), input.device().str());
  if (gradients_) differs("requires grad", yes_no(requires_grad_), yes_no(input.requires_grad()));
  if (input.sizes() == at::IntArrayRef(sizes_) && !same_strides(input))
    differs("strides", list(strides_), list(input.strides()));
  return result;
}

void ParameterGuard::add(const at::Tensor& leaf) {
  const c10::TensorImpl* impl = leaf.unsafeGetTensorImpl();
  if (!leaf.has_storage() ||
      std::any_of(watched_.begin(), watched_.end(), [&](const Watched& known) { return known.impl == impl; })) {
    return;
  }
  watched_.push_back({.impl = impl, .placement = graph::Placement(*impl)});
  leaves_.push_back(leaf);
}

bool ParameterGuard::intact() const noexcept {
  bool same = true;
  for (const Watched& watched : watched_) {
    same &= watched.placement.is_of(*watched.impl);
  }
  return same;
}

std::vector<std::string> ParameterGuard::differences(const ModuleView& module) const {
  std::vector<std::string> result;
  for (std::size_t i = 0; i < watched_.size(); ++i) {
    const graph::Placement::Change change = watched_[i].placement.change(*watched_[i].impl);
    if (change == graph::Placement::Change::none) continue;
    result.push_back(fmt::format("{}: {}", describe_parameter(leaves_[i], module), in_words(change)));
  }
  for (std::string& difference : module.parameter_differences()) result.push_back(std::move(difference));
  return result;
}

std::string describe_parameter(const at::Tensor& parameter, const ModuleView& module) {
  return trace::describe_parameter(parameter, module.name_of(parameter).value_or(""));
}

}  // namespace pianola::callable

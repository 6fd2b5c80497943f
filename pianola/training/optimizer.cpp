#include <pianola/training/optimizer.hpp>

#include <pianola/core/error.hpp>
#include <pianola/core/number_check.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_zero.h>
#include <ATen/ops/full.h>
#include <c10/core/ScalarType.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <unordered_set>
#include <utility>

namespace pianola {
namespace {

// What ATen's fused optimizer kernels are compiled for.
constexpr std::array kDtypes = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16};

std::string name_of(std::size_t index, std::size_t group) {
  return "parameter " + std::to_string(index) + " of group " + std::to_string(group);
}

void check_parameter(const at::Tensor& parameter, const std::string& name) {
  if (!parameter.defined()) throw UsageError({.what = name + " is undefined"});
  if (!parameter.is_leaf()) {
    throw UsageError({.what = name + " is not a leaf: it was computed from other tensors",
                      .fix = "pass the tensor that it was computed from, or detach it first"});
  }
  if (parameter.layout() != at::kStrided || std::ranges::find(kDtypes, parameter.scalar_type()) == kDtypes.end()) {
    throw UsageError({.what = name + " must be a strided tensor of float32, float64, float16 or bfloat16, got " +
                              std::string(parameter.layout() == at::kStrided ? c10::toString(parameter.scalar_type())
                                                                             : "a sparse one")});
  }
  if (!parameter.is_cuda() && !parameter.is_cpu()) {
    throw UsageError({.what = name + " must be on a CUDA device or the CPU, got " + parameter.device().str()});
  }
}

void check_scalar(const at::Tensor& tensor, const char* name, c10::Device device) {
  if (!tensor.defined()) return;
  if (tensor.scalar_type() == at::kFloat && tensor.numel() == 1 && tensor.device() == device) return;
  throw UsageError({.what = std::string("GradScale::") + name + " must be one float32 element on " + device.str() +
                            ", got " + std::to_string(tensor.numel()) + " of " + c10::toString(tensor.scalar_type()) +
                            " on " + tensor.device().str()});
}

}  // namespace

void Optimizer::zero_grad(bool set_to_none) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> filled;
  for (const Group& group : groups_) {
    for (const at::Tensor& parameter : group.parameters) {
      at::Tensor& gradient = parameter.mutable_grad();
      if (!gradient.defined()) continue;
      if (set_to_none) {
        gradient.reset();
        continue;
      }
      if (gradient.grad_fn()) gradient.detach_();
      filled.push_back(gradient);
    }
  }
  if (!filled.empty()) at::_foreach_zero_(filled);
}

std::vector<at::Tensor> Optimizer::gradients() const {
  std::vector<at::Tensor> all;
  for (const Group& group : groups_) {
    for (const at::Tensor& parameter : group.parameters) {
      if (parameter.grad().defined()) all.push_back(parameter.grad());
    }
  }
  return all;
}

std::span<const at::Tensor> Optimizer::parameters(std::size_t group) const { return this->group(group).parameters; }

std::vector<at::Tensor> Optimizer::parameters() const {
  std::vector<at::Tensor> all;
  for (const Group& group : groups_) all.insert(all.end(), group.parameters.begin(), group.parameters.end());
  return all;
}

const at::Tensor& Optimizer::learning_rate(std::size_t group) const { return this->group(group).learning_rate; }

void Optimizer::set_learning_rate(double rate, std::size_t group) {
  check_not_negative("a learning rate", rate);
  const at::Tensor target = this->group(group).learning_rate;
  target.fill_(rate);
}

void Optimizer::set_learning_rate(double rate) {
  for (std::size_t group = 0; group < groups_.size(); ++group) set_learning_rate(rate, group);
}

void Optimizer::add_group(std::vector<at::Tensor> parameters, double learning_rate) {
  const std::size_t number = groups_.size();
  if (parameters.empty()) throw UsageError({.what = "group " + std::to_string(number) + " has no parameters"});
  check_not_negative("a learning rate", learning_rate);
  std::unordered_set<const c10::TensorImpl*> known;
  for (const Group& group : groups_) {
    for (const at::Tensor& parameter : group.parameters) known.insert(parameter.unsafeGetTensorImpl());
  }
  const at::Tensor& first = groups_.empty() ? parameters.front() : groups_.front().parameters.front();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const std::string name = name_of(i, number);
    check_parameter(parameters[i], name);
    if (!known.insert(parameters[i].unsafeGetTensorImpl()).second) {
      throw UsageError({.what = name + " was listed before", .fix = "list each parameter once, in one group"});
    }
    if (parameters[i].device() != first.device()) {
      throw UsageError(
          {.what = name + " is on " + parameters[i].device().str() + ", the first one on " + first.device().str(),
           .fix = "make an optimizer for each device"});
    }
  }
  const at::Tensor rate = at::full({}, learning_rate, at::TensorOptions(at::kFloat).device(first.device()));
  groups_.push_back({.parameters = std::move(parameters), .learning_rate = rate});
}

const Optimizer::Group& Optimizer::group(std::size_t index) const {
  if (index < groups_.size()) return groups_[index];
  throw UsageError(
      {.what = "there is no group " + std::to_string(index) + ": the optimizer has " + std::to_string(groups_.size())});
}

void Optimizer::check(const GradScale& scale) const {
  const c10::Device device = groups_.front().learning_rate.device();
  check_scalar(scale.scale, "scale", device);
  check_scalar(scale.found_inf, "found_inf", device);
}

}  // namespace pianola

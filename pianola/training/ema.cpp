#include <pianola/training/ema.hpp>

#include <pianola/core/error.hpp>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_lerp.h>

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

namespace pianola {
namespace {

[[noreturn]] void refuse(const std::string& why) {
  throw UsageError(
      {.what = "this state cannot be loaded into ExponentialMovingAverage: " + why + "; nothing was changed"});
}

bool same_kind(const at::Tensor& one, const at::Tensor& other) {
  return one.scalar_type() == other.scalar_type() && one.device() == other.device();
}

}  // namespace

ExponentialMovingAverage::ExponentialMovingAverage(std::vector<at::Tensor> parameters, double decay)
    : parameters_(std::move(parameters)), decay_(decay) {
  if (!(decay >= 0 && decay <= 1)) {
    throw UsageError({.what = fmt::format("decay must be between 0 and 1, got {}", decay)});
  }
  if (parameters_.empty()) throw UsageError({.what = "there are no parameters to average"});
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& parameter = parameters_[i];
    if (!parameter.defined() || !parameter.is_floating_point()) {
      throw UsageError({.what = "parameter " + std::to_string(i) + " must be a floating-point tensor, got " +
                                (parameter.defined() ? c10::toString(parameter.scalar_type()) : "an undefined one"),
                        .fix = "leave it out; counters need no average"});
    }
    averages_.push_back(parameter.detach().clone());
    auto lists = std::ranges::find_if(lists_, [&](const Lists& of) { return same_kind(of.averages[0], parameter); });
    if (lists == lists_.end()) lists = lists_.insert(lists_.end(), Lists());
    lists->parameters.push_back(parameter);
    lists->averages.push_back(averages_.back());
  }
}

void ExponentialMovingAverage::update() {
  const at::NoGradGuard no_grad;
  for (const Lists& lists : lists_) at::_foreach_lerp_(lists.averages, lists.parameters, 1 - decay_);
}

void ExponentialMovingAverage::reset() {
  const at::NoGradGuard no_grad;
  for (const Lists& lists : lists_) at::_foreach_copy_(lists.averages, lists.parameters);
}

void ExponentialMovingAverage::copy_to_parameters() {
  const at::NoGradGuard no_grad;
  for (const Lists& lists : lists_) at::_foreach_copy_(lists.parameters, lists.averages);
}

void ExponentialMovingAverage::swap() {
  const at::NoGradGuard no_grad;
  // One by one: what it takes in between is one parameter's memory.
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor average = averages_[i].clone();
    averages_[i].copy_(parameters_[i]);
    parameters_[i].copy_(average);
  }
}

std::vector<NamedTensor> ExponentialMovingAverage::state() const {
  std::vector<NamedTensor> all;
  for (std::size_t i = 0; i < averages_.size(); ++i) {
    all.push_back({.name = "average." + std::to_string(i), .tensor = averages_[i]});
  }
  return all;
}

c10::IValue ExponentialMovingAverage::state_dict() const {
  c10::impl::GenericDict state(c10::AnyType::get(), c10::AnyType::get());
  c10::impl::GenericList averages(c10::AnyType::get());
  for (const at::Tensor& average : averages_) averages.push_back(average);
  state.insert("decay", decay_);
  state.insert("averages", averages);
  return state;
}

void ExponentialMovingAverage::load_state_dict(const c10::IValue& state) {
  if (!state.isGenericDict()) refuse("it must be a dict");
  const auto dict = state.toGenericDict();
  for (const char* name : {"decay", "averages"}) {
    if (!dict.contains(name)) refuse("it lacks '" + std::string(name) + "'");
  }
  const c10::IValue decay = dict.at("decay"), averages = dict.at("averages");
  if (!(decay.isDouble() || decay.isInt()) || decay.toScalar().toDouble() != decay_) {
    refuse(fmt::format("'decay' is not the {} of this one", decay_));
  }
  if (!averages.isList() || averages.toListRef().size() != averages_.size()) {
    refuse("'averages' must be a list of " + std::to_string(averages_.size()) + " tensors");
  }
  const auto saved = averages.toListRef();
  for (std::size_t i = 0; i < averages_.size(); ++i) {
    if (!saved[i].isTensor() || saved[i].toTensor().sizes() != averages_[i].sizes()) {
      refuse("averages[" + std::to_string(i) + "] does not have the shape of its parameter");
    }
  }
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < averages_.size(); ++i) averages_[i].copy_(saved[i].toTensor());
}

}  // namespace pianola

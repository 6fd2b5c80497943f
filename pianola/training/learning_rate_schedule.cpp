#include <pianola/training/learning_rate_schedule.hpp>

#include <pianola/core/error.hpp>
#include <pianola/core/number_check.hpp>
#include <pianola/graph/graph.hpp>
#include <pianola/training/optimizer.hpp>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/full.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>

#include <utility>

namespace pianola {
namespace {

std::vector<at::Tensor> rates_of(const Optimizer& optimizer) {
  std::vector<at::Tensor> rates;
  for (std::size_t group = 0; group < optimizer.groups(); ++group) rates.push_back(optimizer.learning_rate(group));
  return rates;
}

void check_scalars(const std::vector<at::Tensor>& scalars) {
  if (scalars.empty()) throw UsageError({.what = "a schedule needs at least one scalar to write"});
  for (const at::Tensor& scalar : scalars) {
    if (scalar.defined() && scalar.is_floating_point() && scalar.numel() == 1) continue;
    throw UsageError({.what = "a schedule writes floating-point tensors of one element each, got " +
                              (scalar.defined() ? std::to_string(scalar.numel()) + " of " +
                                                      std::string(c10::toString(scalar.scalar_type()))
                                                : "an undefined one")});
  }
}

std::vector<double> bases_of(const std::vector<at::Tensor>& scalars, std::vector<double> given) {
  if (given.empty()) {
    for (const at::Tensor& scalar : scalars) given.push_back(scalar.item<double>());
  }
  if (given.size() == 1) given.resize(scalars.size(), given.front());
  if (given.size() != scalars.size()) {
    throw UsageError({.what = "base_rates must hold one rate for all groups or one for each of the " +
                              std::to_string(scalars.size()) + ", got " + std::to_string(given.size())});
  }
  for (const double base : given) check_not_negative("a base rate", base);
  return given;
}

c10::IValue as_state(std::int64_t steps, const std::vector<double>& bases) {
  c10::impl::GenericDict state(c10::AnyType::get(), c10::AnyType::get());
  c10::impl::GenericList rates(c10::AnyType::get());
  for (const double base : bases) rates.push_back(base);
  state.insert("steps", steps);
  state.insert("base_rates", rates);
  return state;
}

[[noreturn]] void refuse(const std::string& why) {
  throw UsageError({.what = "this state cannot be loaded into a schedule: " + why + "; nothing was changed"});
}

// The number of steps in a state of the same base rates.
std::int64_t steps_in(const c10::IValue& state, const std::vector<double>& bases) {
  if (!state.isGenericDict()) refuse("it must be a dict");
  const auto dict = state.toGenericDict();
  for (const char* name : {"steps", "base_rates"}) {
    if (!dict.contains(name)) refuse("it lacks '" + std::string(name) + "'");
  }
  const c10::IValue steps = dict.at("steps"), rates = dict.at("base_rates");
  if (!steps.isInt() || steps.toInt() < 0) refuse("'steps' must be an integer of 0 or more");
  const bool listed = rates.isList() && rates.toListRef().size() == bases.size();
  for (std::size_t i = 0; i < bases.size(); ++i) {
    const c10::IValue rate = listed ? rates.toListRef()[i] : c10::IValue();
    if ((rate.isDouble() || rate.isInt()) && rate.toScalar().toDouble() == bases[i]) continue;
    refuse("'base_rates' are not those of this schedule");
  }
  return steps.toInt();
}

}  // namespace

LearningRateSchedule::LearningRateSchedule(const Optimizer& optimizer, LearningRate rate,
                                           std::vector<double> base_rates)
    : LearningRateSchedule(rates_of(optimizer), std::move(rate), std::move(base_rates)) {}

LearningRateSchedule::LearningRateSchedule(std::vector<at::Tensor> scalars, LearningRate rate,
                                           std::vector<double> base_rates)
    : scalars_((check_scalars(scalars), std::move(scalars))),
      rate_(std::move(rate)),
      bases_(bases_of(scalars_, std::move(base_rates))) {
  write();
}

void LearningRateSchedule::step() {
  if (is_capturing()) {
    throw UsageError({.what = "LearningRateSchedule::step() inside a capture would freeze the learning rate",
                      .fix = "call it between replays, or capture the step of on_device(total_steps)"});
  }
  ++steps_;
  write();
}

std::vector<double> LearningRateSchedule::rates() const {
  std::vector<double> rates;
  for (const double base : bases_) rates.push_back(rate_(steps_, base));
  return rates;
}

void LearningRateSchedule::write() const {
  const at::NoGradGuard no_grad;
  const std::vector<double> now = rates();
  for (std::size_t i = 0; i < scalars_.size(); ++i) scalars_[i].fill_(now[i]);
}

c10::IValue LearningRateSchedule::state_dict() const { return as_state(steps_, bases_); }

void LearningRateSchedule::load_state_dict(const c10::IValue& state) {
  steps_ = steps_in(state, bases_);
  write();
}

DeviceLearningRateSchedule LearningRateSchedule::on_device(std::int64_t total_steps) const {
  if (total_steps < steps_) {
    throw UsageError({.what = "total_steps must be the " + std::to_string(steps_) +
                              " steps that were taken or more, got " + std::to_string(total_steps)});
  }
  DeviceLearningRateSchedule made;
  made.bases_ = bases_;
  made.counter_ = at::full({1}, steps_, scalars_.front().options().dtype(at::kLong));
  for (std::size_t i = 0; i < scalars_.size(); ++i) {
    std::vector<double> table;
    for (std::int64_t step = 0; step <= total_steps; ++step) table.push_back(rate_(step, bases_[i]));
    made.rates_.push_back(scalars_[i].detach().view({1}));
    made.tables_.push_back(at::tensor(table, at::kDouble).to(scalars_[i].options()));
  }
  return made;
}

void DeviceLearningRateSchedule::step() {
  const at::NoGradGuard no_grad;
  counter_.add_(1).clamp_max_(tables_.front().size(0) - 1);
  write();
}

void DeviceLearningRateSchedule::write() {
  for (std::size_t i = 0; i < rates_.size(); ++i) at::index_select_out(rates_[i], tables_[i], 0, counter_);
}

std::int64_t DeviceLearningRateSchedule::steps() const { return counter_.item<std::int64_t>(); }

std::vector<NamedTensor> DeviceLearningRateSchedule::state() const {
  return {{.name = "schedule.steps", .tensor = counter_}};
}

c10::IValue DeviceLearningRateSchedule::state_dict() const { return as_state(steps(), bases_); }

void DeviceLearningRateSchedule::load_state_dict(const c10::IValue& state) {
  const std::int64_t steps = steps_in(state, bases_), total = tables_.front().size(0) - 1;
  if (steps > total) refuse("its step " + std::to_string(steps) + " lies behind the table of " + std::to_string(total));
  const at::NoGradGuard no_grad;
  counter_.fill_(steps);
  write();
}

}  // namespace pianola

#include <pianola/training/adam.hpp>

#include <pianola/core/error.hpp>
#include <pianola/core/number_check.hpp>
#include <pianola/training/optimizer_state.hpp>
#include <pianola/training/parameter_bucket.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/rsub.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <tuple>
#include <utility>

namespace pianola {

struct AdamBase::GroupData {
  AdamWOptions options;
  at::Tensor weight_decay;  // where it is scheduled
  std::vector<training::StateColumn> columns;
  std::vector<training::ParameterBucket> buckets;
};

namespace {

using training::BucketStep;
using training::GroupOption;

// Places in StepLists::state, where what is laid out like the parameters comes first: counters are its last.
constexpr std::size_t kAverage = 0, kSquare = 1, kLargest = 2;

void check_beta(const char* name, double beta) {
  if (beta >= 0 && beta < 1) return;
  throw UsageError({.what = fmt::format("{} must be at least 0 and below 1, got {}", name, beta)});
}

void check_options(const AdamWOptions& options) {
  check_beta("beta1", options.beta1);
  check_beta("beta2", options.beta2);
  check_not_negative("eps", options.eps);
  check_not_negative("weight_decay", options.weight_decay);
}

std::vector<training::StateColumn> make_columns(const AdamWOptions& options, std::span<const at::Tensor> parameters) {
  std::vector<training::StateColumn> columns{{.name = "step", .tensors = {}, .counter = true},
                                             {.name = "exp_avg", .tensors = {}},
                                             {.name = "exp_avg_sq", .tensors = {}}};
  if (options.amsgrad) columns.push_back({.name = "max_exp_avg_sq", .tensors = {}});
  for (training::StateColumn& column : columns) {
    for (const at::Tensor& parameter : parameters) {
      column.tensors.push_back(column.counter ? at::zeros({}, at::TensorOptions(at::kFloat).device(parameter.device()))
                                              : at::zeros_like(parameter.detach()));
    }
  }
  return columns;
}

std::vector<std::vector<at::Tensor>> lists_of(std::span<const training::StateColumn> columns) {
  std::vector<std::vector<at::Tensor>> lists = training::tensors_of(columns);
  std::ranges::rotate(lists, lists.begin() + 1);
  return lists;
}

// Ahead of the fused operation, which a schedule cannot reach: it takes the weight decay as a number.
void decay(at::TensorList parameters, const at::Tensor& rate, const at::Tensor& weight_decay,
           const at::Tensor& found_inf) {
  at::Tensor factor = at::rsub(at::mul(rate, weight_decay), 1);
  if (found_inf.defined()) factor = factor.masked_fill(at::ne(found_inf, 0).reshape({}), 1);
  at::_foreach_mul_(parameters, factor);
}

AdamWOptions as_common(const AdamOptions& options) {
  return {.lr = options.lr,
          .beta1 = options.beta1,
          .beta2 = options.beta2,
          .eps = options.eps,
          .weight_decay = options.weight_decay,
          .amsgrad = options.amsgrad,
          .maximize = options.maximize};
}

std::vector<ParameterGroup<AdamWOptions>> as_common(std::vector<ParameterGroup<AdamOptions>> groups) {
  std::vector<ParameterGroup<AdamWOptions>> common;
  for (ParameterGroup<AdamOptions>& group : groups) {
    common.push_back({std::move(group.parameters), as_common(group.options)});
  }
  return common;
}

std::vector<GroupOption> options_of(const AdamWOptions& options, const at::Tensor& rate, const at::Tensor& weight_decay,
                                    bool decoupled) {
  using enum GroupOption::Kind;
  const GroupOption decayed = weight_decay.defined() ? GroupOption{"weight_decay", weight_decay, number}
                                                     : GroupOption{"weight_decay", options.weight_decay};
  return {{.name = "lr", .value = rate, .kind = tensor},
          {.name = "betas", .value = std::make_tuple(options.beta1, options.beta2)},
          {.name = "eps", .value = options.eps},
          decayed,
          {.name = "amsgrad", .value = options.amsgrad, .may_lack = true},
          {.name = "maximize", .value = options.maximize, .may_lack = true},
          {.name = "foreach", .value = {}, .kind = layout},
          {.name = "capturable", .value = true, .kind = layout},
          {.name = "differentiable", .value = false, .kind = layout},
          {.name = "fused", .value = true, .kind = layout},
          {.name = "decoupled_weight_decay", .value = decoupled, .may_lack = true}};
}

}  // namespace

AdamBase::AdamBase(std::vector<ParameterGroup<AdamWOptions>> groups, bool decoupled) : decoupled_(decoupled) {
  check_at_least(1, "an optimizer's number of groups", static_cast<std::int64_t>(groups.size()));
  for (ParameterGroup<AdamWOptions>& given : groups) {
    check_options(given.options);
    const std::size_t number = data_.size();
    add_group(std::move(given.parameters), given.options.lr);
    const std::vector<at::Tensor>& parameters = group(number).parameters;
    GroupData made{.options = given.options,
                   .weight_decay = {},
                   .columns = make_columns(given.options, parameters),
                   .buckets = {}};
    made.buckets = training::make_buckets(number, parameters, lists_of(made.columns));
    if (given.options.scheduled_weight_decay) {
      made.weight_decay = at::full({}, given.options.weight_decay, learning_rate(number).options());
    }
    data_.push_back(std::move(made));
  }
}

AdamBase::~AdamBase() = default;

void AdamBase::step(const GradScale& scale) {
  check(scale);
  const at::NoGradGuard no_grad;
  for (std::size_t g = 0; g < data_.size(); ++g) update(data_[g], learning_rate(g), scale);
}

void AdamBase::update(GroupData& group, const at::Tensor& rate, const GradScale& scale) const {
  const AdamWOptions& options = group.options;
  const auto fused = decoupled_ ? &at::_ops::_fused_adamw__tensor_lr::call : &at::_ops::_fused_adam__tensor_lr::call;
  const at::TensorList none;
  for (training::ParameterBucket& bucket : group.buckets) {
    BucketStep lists(bucket);
    if (!lists) continue;
    const std::vector<at::Tensor>& steps = lists->state.back();
    at::_foreach_add_(steps, 1);
    if (group.weight_decay.defined()) decay(lists->parameters, rate, group.weight_decay, scale.found_inf);
    fused(lists->parameters, lists->gradients, lists->state[kAverage], lists->state[kSquare],
          options.amsgrad ? at::TensorList(lists->state[kLargest]) : none, steps, rate, options.beta1, options.beta2,
          group.weight_decay.defined() ? 0 : options.weight_decay, options.eps, options.amsgrad, options.maximize,
          training::as_optional(scale.scale), training::as_optional(scale.found_inf));
    if (scale.found_inf.defined()) at::_foreach_add_(steps, scale.found_inf.reshape({}), -1);
    lists.finish(scale.scale.defined());
  }
}

std::vector<NamedTensor> AdamBase::state() const {
  std::vector<NamedTensor> all;
  std::size_t index = 0;
  for (std::size_t g = 0; g < data_.size(); ++g) {
    training::add_columns(all, data_[g].columns, index);
    const std::string name = "group." + std::to_string(g);
    all.push_back({.name = name + ".lr", .tensor = learning_rate(g)});
    if (data_[g].weight_decay.defined()) {
      all.push_back({.name = name + ".weight_decay", .tensor = data_[g].weight_decay});
    }
    index += parameters(g).size();
  }
  return all;
}

std::vector<training::GroupState> AdamBase::group_states() const {
  std::vector<training::GroupState> states;
  for (std::size_t g = 0; g < data_.size(); ++g) {
    const GroupData& group = data_[g];
    states.push_back({options_of(group.options, learning_rate(g), group.weight_decay, decoupled_), group.columns,
                      parameters(g).size()});
  }
  return states;
}

c10::IValue AdamBase::state_dict() const {
  std::vector<std::vector<bool>> saved;
  for (std::size_t g = 0; g < data_.size(); ++g) saved.emplace_back(parameters(g).size(), true);
  return training::write_state_dict(group_states(), saved);
}

void AdamBase::load_state_dict(const c10::IValue& state) {
  training::LoadPlan(decoupled_ ? "AdamW" : "Adam", group_states(), state).run();
}

const at::Tensor& AdamBase::scheduled_weight_decay(std::size_t group) const {
  (void)this->group(group);  // there is one
  if (data_[group].weight_decay.defined()) return data_[group].weight_decay;
  throw UsageError({.what = "the weight decay of group " + std::to_string(group) + " is a number of the host",
                    .fix = "set AdamWOptions::scheduled_weight_decay"});
}

Adam::Adam(std::vector<at::Tensor> parameters, const AdamOptions& options)
    : Adam(std::vector<ParameterGroup<AdamOptions>>{{std::move(parameters), options}}) {}

Adam::Adam(std::vector<ParameterGroup<AdamOptions>> groups) : AdamBase(as_common(std::move(groups)), false) {}

AdamW::AdamW(std::vector<at::Tensor> parameters, const AdamWOptions& options)
    : AdamW(std::vector<ParameterGroup<AdamWOptions>>{{std::move(parameters), options}}) {}

AdamW::AdamW(std::vector<ParameterGroup<AdamWOptions>> groups) : AdamBase(std::move(groups), true) {}

const at::Tensor& AdamW::weight_decay(std::size_t group) const { return scheduled_weight_decay(group); }

}  // namespace pianola

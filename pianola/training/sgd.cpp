#include <pianola/training/sgd.hpp>

#include <pianola/core/error.hpp>
#include <pianola/core/number_check.hpp>
#include <pianola/training/optimizer_state.hpp>
#include <pianola/training/parameter_bucket.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rsub.h>

#include <fmt/format.h>

#include <optional>
#include <span>
#include <utility>

namespace pianola {

struct SGD::GroupData {
  SGDOptions options;
  std::vector<training::StateColumn> columns;
  std::vector<training::ParameterBucket> buckets;
  std::vector<at::Tensor> first;  // with dampening, for each bucket: float32 [1], 1 until it has taken a step
};

namespace {

using training::BucketStep;
using training::GroupOption;
using training::LoadPlan;

void check_options(const SGDOptions& options) {
  check_not_negative("momentum", options.momentum);
  check_not_negative("weight_decay", options.weight_decay);
  check_finite("dampening", options.dampening);
  if (!options.nesterov || (options.momentum > 0 && options.dampening == 0)) return;
  throw UsageError({.what = fmt::format("nesterov wants a momentum and no dampening, got momentum {} and dampening {}",
                                        options.momentum, options.dampening)});
}

// -0 + x is x for every x, also for -0: the first step then gives the bits of a sum that starts with its gradient.
constexpr double kEmptySum = -0.0;

std::vector<training::StateColumn> make_columns(const SGDOptions& options, std::span<const at::Tensor> parameters) {
  if (options.momentum == 0) return {};
  training::StateColumn sums{.name = "momentum_buffer", .tensors = {}, .initial = kEmptySum};
  for (const at::Tensor& parameter : parameters) sums.tensors.push_back(at::full_like(parameter.detach(), kEmptySum));
  return {std::move(sums)};
}

// On the CPU, torch 2.11's kernel drops whole vectors of float16 and bfloat16 (pytorch#191763).
bool kernel_knows(c10::ScalarType dtype, c10::Device device) {
  return !device.is_cpu() || (dtype != at::kHalf && dtype != at::kBFloat16);
}

bool has_first_step(const SGDOptions& options) { return options.momentum != 0 && options.dampening != 0; }

void launch(const SGDOptions& options, const at::Tensor& rate, const BucketStep& lists, bool first_step,
            const at::Tensor& grad_scale, const at::Tensor& skip) {
  const at::TensorList sums = options.momentum == 0 ? at::TensorList() : at::TensorList(lists->state[0]);
  at::_fused_sgd_(lists->parameters, lists->gradients, sums, options.weight_decay, options.momentum, rate,
                  options.dampening, options.nesterov, options.maximize, first_step, training::as_optional(grad_scale),
                  training::as_optional(skip));
}

// Launches the form of the first step and that of later ones, each with orders to skip where it does not apply.
void launch_both(const SGDOptions& options, const at::Tensor& rate, const BucketStep& lists, const at::Tensor& first,
                 const GradScale& scale) {
  const at::Tensor begun = at::rsub(first, 1);
  const auto or_found_inf = [&](const at::Tensor& skip) {
    return scale.found_inf.defined() ? at::maximum(skip, scale.found_inf) : skip;
  };
  launch(options, rate, lists, /*first_step=*/true, scale.scale, or_found_inf(begun));
  launch(options, rate, lists, /*first_step=*/false, scale.scale, or_found_inf(first));
  if (scale.found_inf.defined()) {
    first.mul_(scale.found_inf);
  } else {
    first.zero_();
  }
}

std::vector<GroupOption> options_of(const SGDOptions& options, const at::Tensor& rate) {
  using enum GroupOption::Kind;
  return {{.name = "lr", .value = rate, .kind = tensor},
          {.name = "momentum", .value = options.momentum},
          {.name = "dampening", .value = options.dampening},
          {.name = "weight_decay", .value = options.weight_decay},
          {.name = "nesterov", .value = options.nesterov, .may_lack = true},
          {.name = "maximize", .value = options.maximize, .may_lack = true},
          {.name = "foreach", .value = {}, .kind = layout},
          {.name = "differentiable", .value = false, .kind = layout},
          {.name = "fused", .value = true, .kind = layout}};
}

// Which rows of the buckets `flag` holds for, by their places in the group.
template <typename Flag>
std::vector<bool> by_parameter(const std::vector<training::ParameterBucket>& buckets, std::size_t parameters,
                               const Flag& flag) {
  std::vector<bool> result(parameters, true);
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    const bool value = flag(b);
    for (const std::size_t i : buckets[b].indices()) result[i] = value;
  }
  return result;
}

}  // namespace

SGD::SGD(std::vector<at::Tensor> parameters, const SGDOptions& options)
    : SGD(std::vector<ParameterGroup<SGDOptions>>{{std::move(parameters), options}}) {}

SGD::SGD(std::vector<ParameterGroup<SGDOptions>> groups) {
  check_at_least(1, "an optimizer's number of groups", static_cast<std::int64_t>(groups.size()));
  for (ParameterGroup<SGDOptions>& given : groups) {
    check_options(given.options);
    const std::size_t number = data_.size();
    add_group(std::move(given.parameters), given.options.lr);
    const std::vector<at::Tensor>& parameters = group(number).parameters;
    GroupData made{
        .options = given.options, .columns = make_columns(given.options, parameters), .buckets = {}, .first = {}};
    made.buckets = training::make_buckets(number, parameters, training::tensors_of(made.columns));
    for (training::ParameterBucket& bucket : made.buckets) {
      if (!kernel_knows(bucket.dtype(), parameters.front().device())) bucket.widen();
    }
    if (has_first_step(made.options)) {
      for (std::size_t i = 0; i < made.buckets.size(); ++i) {
        made.first.push_back(at::ones({1}, learning_rate(number).options()));
      }
    }
    data_.push_back(std::move(made));
  }
}

SGD::~SGD() = default;

void SGD::step(const GradScale& scale) {
  check(scale);
  const at::NoGradGuard no_grad;
  for (std::size_t g = 0; g < data_.size(); ++g) {
    GroupData& group = data_[g];
    for (std::size_t b = 0; b < group.buckets.size(); ++b) {
      BucketStep lists(group.buckets[b]);
      if (!lists) continue;
      if (group.first.empty()) {
        launch(group.options, learning_rate(g), lists, /*first_step=*/false, scale.scale, scale.found_inf);
      } else if (lists.whole()) {
        launch_both(group.options, learning_rate(g), lists, group.first[b], scale);
      } else {
        throw UsageError({.what = "with dampening, all parameters of a group and dtype must have gradients: only " +
                                  std::to_string(lists->parameters.size()) + " of " +
                                  std::to_string(group.buckets[b].size()) + " in group " + std::to_string(g) + " have",
                          .fix = "put parameters that get gradients at other steps into groups of their own"});
      }
      lists.finish(scale.scale.defined());
    }
  }
}

std::vector<NamedTensor> SGD::state() const {
  std::vector<NamedTensor> all;
  std::size_t index = 0;
  for (std::size_t g = 0; g < data_.size(); ++g) {
    training::add_columns(all, data_[g].columns, index);
    const std::string name = "group." + std::to_string(g);
    all.push_back({.name = name + ".lr", .tensor = learning_rate(g)});
    for (std::size_t b = 0; b < data_[g].first.size(); ++b) {
      all.push_back({.name = name + ".first." + std::to_string(b), .tensor = data_[g].first[b]});
    }
    index += parameters(g).size();
  }
  return all;
}

std::vector<training::GroupState> SGD::group_states() const {
  std::vector<training::GroupState> states;
  for (std::size_t g = 0; g < data_.size(); ++g) {
    states.push_back({options_of(data_[g].options, learning_rate(g)), data_[g].columns, parameters(g).size()});
  }
  return states;
}

c10::IValue SGD::state_dict() const {
  std::vector<std::vector<bool>> saved;
  for (std::size_t g = 0; g < data_.size(); ++g) {
    const GroupData& group = data_[g];
    saved.push_back(by_parameter(group.buckets, parameters(g).size(), [&](std::size_t b) {
      return group.first.empty() || group.first[b].item<float>() == 0;
    }));
  }
  return training::write_state_dict(group_states(), saved);
}

void SGD::load_state_dict(const c10::IValue& state) {
  const LoadPlan plan("SGD", group_states(), state);
  std::vector<std::pair<at::Tensor, bool>> firsts;
  for (std::size_t g = 0; g < data_.size(); ++g) {
    for (std::size_t b = 0; b < data_[g].first.size(); ++b) {
      const std::vector<std::size_t>& indices = data_[g].buckets[b].indices();
      const std::size_t found = plan.found(g, indices);
      if (found != 0 && found != indices.size()) {
        throw UsageError({.what = "this state cannot be loaded into SGD: with dampening, all parameters of a group and "
                                  "dtype must have state, or none may, but " +
                                  std::to_string(found) + " of " + std::to_string(indices.size()) + " in group " +
                                  std::to_string(g) + " have; nothing was changed",
                          .fix = "put parameters that get gradients at other steps into groups of their own"});
      }
      firsts.emplace_back(data_[g].first[b], found == 0);
    }
  }
  plan.run();
  for (const auto& [target, first] : firsts) target.fill_(first ? 1 : 0);
}

}  // namespace pianola

#include <pianola/training/clip_grad.hpp>

#include <pianola/core/error.hpp>
#include <pianola/training/finite_watch.hpp>
#include <pianola/training/optimizer.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/native/ForeachUtils.h>
#include <ATen/ops/_foreach_clamp_max.h>
#include <ATen/ops/_foreach_clamp_min.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

namespace pianola {
namespace {

constexpr double kNormEpsilon = 1e-6;  // torch's

// Gradients of one device and dtype, as the multi-tensor kernels want them.
struct GradientGroup {
  std::vector<at::Tensor> gradients;
  std::vector<std::size_t> indices;
};

// In the order that torch puts them in: the total norm is summed in it.
std::vector<GradientGroup> grouped(const std::vector<at::Tensor>& gradients) {
  std::vector<std::optional<at::Tensor>> list(gradients.begin(), gradients.end());
  std::vector<GradientGroup> groups;
  for (const auto& [kind, members] :
       at::native::_group_tensors_by_first_tensors_device_and_dtype({std::move(list)}, /*with_indices=*/true)) {
    GradientGroup& group = groups.emplace_back();
    for (const std::optional<at::Tensor>& gradient : members.first.front()) group.gradients.push_back(*gradient);
    group.indices = members.second;
  }
  return groups;
}

void check_limit(double limit, const char* name) {
  if (limit >= 0) return;
  throw UsageError({.what = fmt::format("{} must be 0 or more, got {}", name, limit)});
}

// Those that are defined, with their numbers in `parameters`.
std::pair<std::vector<at::Tensor>, std::vector<std::size_t>> gradients_of(std::span<const at::Tensor> parameters,
                                                                          const char* call) {
  std::pair<std::vector<at::Tensor>, std::vector<std::size_t>> found;
  bool any_parameter = parameters.empty();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& parameter = parameters[i];
    if (!parameter.defined()) throw UsageError({.what = fmt::format("parameter {} of {}() is undefined", i, call)});
    if (parameter.is_leaf() && parameter.grad().defined()) {
      found.first.push_back(parameter.grad());
      found.second.push_back(i);
    }
    any_parameter = any_parameter || parameter.requires_grad();
  }
  if (!any_parameter && found.first.empty()) {
    throw UsageError(
        {.what = fmt::format("none of the {} tensors of {}() requires a gradient or has one", parameters.size(), call),
         .fix = "pass parameters; gradients themselves are for clip_gradients_norm_()"});
  }
  return found;
}

// Of the tensors that are left, from those of all that were given.
ClipGradOptions for_those(const ClipGradOptions& options, const std::vector<std::size_t>& indices, std::size_t given,
                          const char* kind) {
  if (!options.names.empty() && options.names.size() != given) {
    throw UsageError(
        {.what = fmt::format("ClipGradOptions::names has {} names for {} tensors", options.names.size(), given)});
  }
  ClipGradOptions chosen = {
      .norm_type = options.norm_type, .error_if_nonfinite = options.error_if_nonfinite, .names = {}};
  if (options.error_if_nonfinite == nullptr) return chosen;
  for (const std::size_t i : indices) {
    chosen.names.push_back(options.names.empty() ? fmt::format("{} {}", kind, i) : options.names[i]);
  }
  return chosen;
}

void note(const ClipGradOptions& options, const std::vector<GradientGroup>& groups, const at::Tensor& norms,
          const at::Tensor& total) {
  if (options.error_if_nonfinite == nullptr) return;
  std::vector<std::string> names;
  for (const GradientGroup& group : groups) {
    for (const std::size_t i : group.indices) {
      names.push_back(fmt::format("{}-norm of the gradient of {}", options.norm_type, options.names[i]));
    }
  }
  options.error_if_nonfinite->check_gradient_norms(std::move(names), norms);
  options.error_if_nonfinite->check_gradient_norms({fmt::format("{}-norm of all gradients", options.norm_type)},
                                                   total.view({1}));
}

at::Tensor clip(const std::vector<at::Tensor>& gradients, double max_norm, const ClipGradOptions& options) {
  if (gradients.empty()) return at::zeros({});
  const at::NoGradGuard no_grad;
  const c10::Device device = gradients.front().device();
  const std::vector<GradientGroup> groups = grouped(gradients);
  std::vector<at::Tensor> each;
  for (const GradientGroup& group : groups) {
    for (const at::Tensor& norm : at::_foreach_norm(group.gradients, options.norm_type))
      each.push_back(norm.to(device));
  }
  const at::Tensor norms = at::stack(each);
  const at::Tensor total = at::linalg_vector_norm(norms, options.norm_type);
  note(options, groups, norms, total);
  // No branch on whether it is below 1: that would be the host's.
  const at::Tensor factor = at::clamp(total.add(kNormEpsilon).reciprocal().mul(max_norm), std::nullopt, 1.0);
  for (const GradientGroup& group : groups) {
    at::_foreach_mul_(group.gradients, factor.to(group.gradients.front().device()));
  }
  return total;
}

}  // namespace

at::Tensor clip_grad_norm_(std::span<const at::Tensor> parameters, double max_norm, const ClipGradOptions& options) {
  check_limit(max_norm, "max_norm");
  const auto [gradients, indices] = gradients_of(parameters, "clip_grad_norm_");
  return clip(gradients, max_norm, for_those(options, indices, parameters.size(), "parameter"));
}

at::Tensor clip_grad_norm_(const Optimizer& optimizer, double max_norm, const ClipGradOptions& options) {
  return clip_grad_norm_(optimizer.parameters(), max_norm, options);
}

at::Tensor clip_gradients_norm_(std::span<const at::Tensor> gradients, double max_norm,
                                const ClipGradOptions& options) {
  check_limit(max_norm, "max_norm");
  std::vector<std::size_t> all;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) {
      throw UsageError({.what = fmt::format("gradient {} of clip_gradients_norm_() is undefined", i)});
    }
    if (gradients[i].is_leaf() && gradients[i].requires_grad()) {
      throw UsageError({.what = fmt::format("tensor {} of clip_gradients_norm_() is a parameter: it would be scaled "
                                            "itself",
                                            i),
                        .fix = "pass gradients, or call clip_grad_norm_()"});
    }
    all.push_back(i);
  }
  return clip({gradients.begin(), gradients.end()}, max_norm, for_those(options, all, gradients.size(), "tensor"));
}

void clip_grad_value_(std::span<const at::Tensor> parameters, double clip_value) {
  check_limit(clip_value, "clip_value");
  const at::NoGradGuard no_grad;
  const auto [gradients, indices] = gradients_of(parameters, "clip_grad_value_");
  if (gradients.empty()) return;
  for (const GradientGroup& group : grouped(gradients)) {
    at::_foreach_clamp_min_(group.gradients, -clip_value);
    at::_foreach_clamp_max_(group.gradients, clip_value);
  }
}

void clip_grad_value_(const Optimizer& optimizer, double clip_value) {
  clip_grad_value_(optimizer.parameters(), clip_value);
}

}  // namespace pianola

#include <pianola/fp8/linear.hpp>

#include <pianola/callable/product_nodes.hpp>
#include <pianola/core/error.hpp>
#include <pianola/fp8/product.hpp>
#include <pianola/fp8/region.hpp>

#include <ATen/SavedTensorHooks.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linear.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <fmt/format.h>

#include <utility>
#include <vector>

namespace pianola::fp8 {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Granularity granularity_of(Scaling scaling, bool is_weight) {
  switch (scaling) {
    case Scaling::delayed:
      return Granularity::given;
    case Scaling::tensor:
      return Granularity::whole;
    case Scaling::row:
      return Granularity::row;
    case Scaling::block:
      break;
  }
  return is_weight ? Granularity::block_128x128 : Granularity::block_1x128;
}

QuantizeOptions options_of(const Recipe& recipe, Role role) {
  return {.type = role == Role::gradient ? recipe.gradient_type() : recipe.forward_type(),
          .granularity = granularity_of(recipe.scaling, role == Role::weight),
          .powers_of_two = recipe.powers_of_two || recipe.scaling == Scaling::block};
}

at::Tensor as_matrix(const at::Tensor& values) { return values.reshape({-1, values.size(-1)}); }

// What the backward pass needs besides tensors that autograd saves. A weight that is kept is none of those: later microbatches are given
// it to write, and write the same, which autograd would take for a change.
struct Backward final : torch::CustomClassHolder {
  QuantizeOptions gradient;
  Factor input, weight;  // without tensors where autograd has saved them
  c10::ScalarType weight_type = c10::kFloat;
  std::vector<std::int64_t> input_sizes;
  c10::ScalarType input_type = c10::kFloat;
  bool has_bias = false;
  std::shared_ptr<const std::uint64_t> times_kept;  // nullptr: it is not
  std::uint64_t kept_when = 0;
  bool is_recomputed = false;  // what autograd has saved is made anew by a hook
  bool weight_trains = false, bias_trains = false;
  // Note [Weight gradients later]. What comes later uses the scale of now: the next region may end before. It stays in place, as what
  // autograd has saved does: graphs that are recorded meanwhile must not have its memory.
  bool is_second_part = false;
  Factor later;  // the gradient, cast for the weight's

  void check(bool needs_weight) const {
    if (at::GradMode::is_enabled()) {
      throw UsageError(
          {.what = "a linear layer of 8 bits is differentiated twice: backward() was called with create_graph=True",
           .fix = "leave create_graph out, or leave the layer in more bits"});
    }
    if (needs_weight && times_kept != nullptr && *times_kept != kept_when) {
      throw UsageError(
          {.what = "the quantised weight that this backward pass needs was replaced by a later first microbatch",
           .fix = "run all backward passes of a step before the first microbatch of the next"});
    }
  }
};

class ScaledLinear : public torch::autograd::Function<ScaledLinear> {
 public:
  // x, weight and bias are there for their gradients; the factors are what they were made.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& /*x*/, const at::Tensor& /*weight*/,
                            const std::optional<at::Tensor>& bias, const std::pair<Quantized, Quantized>& factors,
                            c10::ScalarType type, const c10::intrusive_ptr<Backward>& backward) {
    const auto& [input, weight] = factors;
    const at::Tensor result = scaled_product(input.rows, weight.rows, type, /*fast_accumulation=*/true, bias);
    backward->input.granularity = input.columns.granularity;
    backward->weight = weight.columns;
    variable_list saved = {input.columns.data, input.columns.inverse};
    if (backward->times_kept == nullptr) {
      saved.insert(saved.end(), {weight.columns.data, weight.columns.inverse});
      backward->weight.data = backward->weight.inverse = at::Tensor();
    }
    context->save_for_backward(std::move(saved));
    context->saved_data["backward"] = c10::IValue::make_capsule(backward);
    return result;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto how = c10::static_intrusive_pointer_cast<Backward>(context->saved_data["backward"].toCapsule());
    QuantizeOptions wanted = how->gradient;
    wanted.rows = context->needs_input_grad(0);
    wanted.columns = context->needs_input_grad(1);
    how->check(/*needs_weight=*/wanted.rows);
    const auto saved = context->get_saved_variables();
    const at::Tensor& gradient = gradients[0];
    Factor input = how->input, weight = how->weight;
    input.data = saved[0];
    input.inverse = saved[1];
    if (how->times_kept == nullptr) {
      weight.data = saved[2];
      weight.inverse = saved[3];
    }
    variable_list result(6);
    if (how->has_bias && context->needs_input_grad(2)) result[2] = gradient.sum(0);
    if (how->is_second_part) {
      if (wanted.columns) result[1] = scaled_product(how->later, input, how->weight_type, false);
      return result;
    }
    const auto node = torch::autograd::get_current_node();
    const bool weight_waits = how->weight_trains && !node->next_edge(1).is_valid();
    how->is_second_part = weight_waits || (how->bias_trains && !node->next_edge(2).is_valid());
    wanted.columns = wanted.columns || weight_waits;
    const Quantized factor = quantize(gradient, wanted);
    if (wanted.rows) result[0] = scaled_product(factor.rows, weight, how->input_type, false).view(how->input_sizes);
    if (weight_waits) {
      how->later = factor.columns;
    } else if (wanted.columns) {
      result[1] = scaled_product(factor.columns, input, how->weight_type, false);
    }
    return result;
  }
};

// Its node is one that runs in two parts, unless hooks of checkpoint() would compute it twice.
bool is_divisible(const torch::autograd::Node& node) {
  const auto* const product = dynamic_cast<const torch::autograd::CppNode<ScaledLinear>*>(&node);
  if (product == nullptr) return false;
  const auto& saved = product->ctx_.saved_data;
  return !c10::static_intrusive_pointer_cast<Backward>(saved.at("backward").toCapsule())->is_recomputed;
}

[[maybe_unused]] const bool layers_are_divisible = callable::know_divisible_product(&is_divisible);

// float32 becomes what torch's autocast says, as in torch's linear.
c10::ScalarType result_type(const at::Tensor& x) {
  const c10::DeviceType device = x.device().type();
  return at::autocast::is_autocast_enabled(device) ? at::autocast::get_autocast_dtype(device) : x.scalar_type();
}

void note_amax(const at::Tensor& values, const at::Tensor& noted) {
  QuantizeOptions options{.rows = false, .columns = false};
  options.amax = noted;
  quantize_into({}, values, options, {});
}

}  // namespace

LinearState::LinearState(Recipe recipe, std::shared_ptr<const ScaleTable> scales, std::int64_t layer)
    : recipe_(std::move(recipe)), scales_(std::move(scales)), layer_(layer) {
  recipe_.check();
  if (scales_ != nullptr) (void)first_microbatch_flag(scales_->scale().device());  // before a region begins
}

const Recipe& LinearState::recipe_in(const std::optional<Recipe>& of_region) const {
  const Recipe& recipe = of_region ? *of_region : recipe_;
  if (recipe.scaling == Scaling::delayed && (scales_ == nullptr || recipe != scales_->recipe())) {
    throw UsageError({.what = fmt::format("a region with {} runs a layer that was made with {}", recipe.to_text(),
                                          recipe_.to_text()),
                      .fix = "convert the model with the region's recipe, or leave the region's out"});
  }
  return recipe;
}

// Kept ones are what they were, whatever the scales have become since.
Quantized LinearState::quantized_weight(const at::Tensor& weight, const QuantizeOptions& options, bool is_first) {
  const at::Tensor flag = first_microbatch_flag(weight.device());
  const bool is_kept = kept_.rows.data.defined() && kept_.rows.granularity == options.granularity &&
                       kept_powers_of_two_ == options.powers_of_two && kept_.rows.data.scalar_type() == options.type &&
                       kept_.rows.data.device() == weight.device();
  if (!is_kept && !is_first) {
    throw UsageError({.what = "a microbatch that is not the first finds no quantised weight",
                      .fix = "run a region with is_first_microbatch=True before those with False"});
  }
  const std::uint32_t version = weight.is_inference() ? 0 : static_cast<std::uint32_t>(weight._version());
  if (!is_first && version != kept_version_) {
    throw UsageError({.what = "a weight was written since the first microbatch, and its quantised copy is older",
                      .fix = "say is_first_microbatch=True behind an optimizer's step"});
  }
  kept_version_ = version;
  if (is_first) ++*times_kept_;
  QuantizeOptions both = options;
  both.rows = both.columns = true;
  if (!is_kept) {
    const c10::InferenceMode no_inference(false);  // later calls write there
    kept_ = quantize(weight, both);
    kept_powers_of_two_ = options.powers_of_two;
  } else {
    quantize_into(kept_, weight, both, flag);
  }
  return kept_;
}

at::Tensor LinearState::forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, bool trains) {
  Autocast* const region = Autocast::current();
  const bool is_on = region != nullptr && region->options().enabled;
  const bool is_recomputed = torch::autograd::get_current_graph_task_id() != -1;
  if (is_recomputed && ran_in_region_ && !is_on) {
    throw UsageError({.what = "a linear layer of 8 bits is recomputed outside of the region that it ran in",
                      .fix = "open the region inside of what checkpoint() is given"});
  }
  if (!is_recomputed) ran_in_region_ = is_on;
  if (x.numel() == 0) return at::linear(x, weight, bias.defined() ? std::optional(bias) : std::nullopt);  // no amax
  if (!is_on) {
    if (region != nullptr && region->options().calibrating && scales_ != nullptr) {
      const at::NoGradGuard no_grad;
      region->ran(scales_);
      note_amax(as_matrix(x), scales_->noted_of(layer_, Role::input));
      note_amax(weight, scales_->noted_of(layer_, Role::weight));
    }
    return at::linear(x, weight, bias.defined() ? std::optional(bias) : std::nullopt);
  }
  const Recipe& recipe = recipe_in(region->options().recipe);
  check_device(x.device(), recipe);
  QuantizeOptions of_input = options_of(recipe, Role::input), of_weight = options_of(recipe, Role::weight);
  const auto backward = c10::make_intrusive<Backward>();
  backward->gradient = options_of(recipe, Role::gradient);
  backward->weight_type = weight.scalar_type();
  backward->input_sizes = x.sizes().vec();
  backward->input_type = x.scalar_type();
  backward->has_bias = bias.defined();
  backward->weight_trains = at::GradMode::is_enabled() && weight.requires_grad();
  backward->bias_trains = at::GradMode::is_enabled() && bias.defined() && bias.requires_grad();
  backward->is_recomputed = at::SavedTensorDefaultHooks::get_hooks().has_value();
  if (recipe.scaling == Scaling::delayed) {
    const auto give = [&](QuantizeOptions& options, Role role) {
      options.scale = scales_->scale_of(layer_, role);
      if (trains) options.amax = scales_->noted_of(layer_, role);
    };
    give(of_input, Role::input);
    give(of_weight, Role::weight);
    give(backward->gradient, Role::gradient);
  }
  region->ran(recipe.scaling == Scaling::delayed && trains ? scales_ : nullptr);
  of_input.columns = at::GradMode::is_enabled() && weight.requires_grad();
  of_weight.columns = at::GradMode::is_enabled() && x.requires_grad();
  std::pair<Quantized, Quantized> factors;
  {
    const at::NoGradGuard no_grad;
    factors.first = quantize(as_matrix(x.detach()), of_input);
    const std::optional<bool> is_first = region->options().is_first_microbatch;
    factors.second =
        is_first ? quantized_weight(weight.detach(), of_weight, *is_first) : quantize(weight.detach(), of_weight);
    if (is_first) {
      backward->times_kept = times_kept_;
      backward->kept_when = *times_kept_;
    }
  }
  std::vector<std::int64_t> sizes = x.sizes().vec();
  sizes.back() = weight.size(0);
  const at::Tensor result = ScaledLinear::apply(x, weight, bias.defined() ? std::optional(bias) : std::nullopt, factors,
                                                result_type(x), backward);
  return x.dim() == 2 ? result : result.view(sizes);
}

at::Tensor Float8LinearImpl::forward(const at::Tensor& x) {
  if (state_ != nullptr) return state_->forward(x, weight, bias, is_training());
  const Autocast* const region = Autocast::current();
  if (region == nullptr || !region->options().enabled) return LinearImpl::forward(x);
  throw UsageError({.what = "a Float8Linear has no recipe", .fix = "call fp8::share_scales(model, recipe) once"});
}

void share_scales(torch::nn::Module& model, const Recipe& recipe) {
  recipe.check();
  std::vector<Float8LinearImpl*> layers;
  model.apply([&](torch::nn::Module& module) {
    if (auto* const layer = dynamic_cast<Float8LinearImpl*>(&module)) layers.push_back(layer);
  });
  if (layers.empty())
    throw UsageError({.what = "the model has no Float8Linear", .fix = "make its linear layers of it"});
  std::shared_ptr<ScaleTable> table;
  if (recipe.scaling == Scaling::delayed) {
    if (model.named_buffers(/*recurse=*/false).contains("fp8_scale"))
      throw UsageError({.what = "the model's layers share their scales already", .fix = "call share_scales() once"});
    table = std::make_shared<ScaleTable>(static_cast<std::int64_t>(layers.size()), recipe, layers[0]->weight.device());
    model.register_buffer("fp8_scale", table->scale());
    model.register_buffer("fp8_history", table->history());
    model.register_buffer("fp8_updates", table->updates());
  }
  for (std::size_t i = 0; i < layers.size(); ++i)
    layers[i]->state_ = std::make_shared<LinearState>(recipe, table, static_cast<std::int64_t>(i));
}

}  // namespace pianola::fp8

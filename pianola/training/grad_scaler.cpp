#include <pianola/training/grad_scaler.hpp>

#include <pianola/core/error.hpp>
#include <pianola/core/number_check.hpp>
#include <pianola/graph/device_check.hpp>
#include <pianola/graph/graph.hpp>
#include <pianola/trace/op_stream.hpp>
#include <pianola/trace/tensors_of.hpp>
#include <pianola/training/optimizer.hpp>

#include <ATen/core/Dict.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>

namespace pianola {
namespace {

constexpr const char* kTogether =
    "put the calls from unscale_() to update() into one captured step; if the capture failed, call abandon_step()";
constexpr const char* kAfterException = "call it once per step; after an exception in a step, call abandon_step()";

void check_scale(double scale, const char* name) {
  if (std::isfinite(scale) && scale > 0) return;
  throw UsageError({.what = fmt::format("{} must be above 0 and finite, got {}", name, scale)});
}

void check(const GradScalerOptions& options) {
  check_scale(options.init_scale, "init_scale");
  if (!(std::isfinite(options.growth_factor) && options.growth_factor > 1)) {
    throw UsageError({.what = fmt::format("growth_factor must be above 1, got {}", options.growth_factor)});
  }
  if (!(options.backoff_factor > 0 && options.backoff_factor < 1)) {
    throw UsageError({.what = fmt::format("backoff_factor must be between 0 and 1, got {}", options.backoff_factor)});
  }
  check_at_least(1, "growth_interval", options.growth_interval);
}

void check_gradient(const at::Tensor& gradient, c10::Device device, bool allow_half) {
  if (gradient.device() != device) {
    throw UsageError({.what = fmt::format("a gradient of the optimizer is on {}, the GradScaler on {}",
                                          gradient.device().str(), device.str()),
                      .fix = "make a GradScaler for each device"});
  }
  if (gradient.layout() != at::kStrided) {
    throw UsageError({.what = "a gradient of the optimizer is sparse, which a GradScaler does not accept",
                      .fix = "make it dense, as with sparse=false of an embedding"});
  }
  if (!allow_half && gradient.scalar_type() == at::kHalf) {
    throw UsageError({.what = "a gradient of the optimizer is float16, whose small values unscale_() would lose",
                      .fix = "keep parameters in float32 and compute in float16 under autocast"});
  }
}

// Whether an operation of this thread took a tensor, or a view of it.
class UseWatch final : public trace::OpObserver {
 public:
  explicit UseWatch(const at::Tensor& tensor) : storage_(trace::storage_of(tensor)) {}

  [[nodiscard]] trace::OpInterest interest() const override { return {.outputs = false}; }
  void on_op_begin(const trace::OpSpan& op) override {
    for (const c10::IValue& input : op.inputs) {
      trace::for_each_tensor(input, [&](const at::Tensor& tensor) { used_ |= trace::storage_of(tensor) == storage_; });
    }
  }

  [[nodiscard]] bool used() const noexcept { return used_; }

 private:
  const c10::StorageImpl* storage_;
  bool used_ = false;
};

void check_used(const UseWatch& watch, const char* name, const char* consequence) {
  if (watch.used()) return;
  throw UsageError(
      {.what = fmt::format("the optimizer's step() did not look at {} of its GradScale: {}", name, consequence),
       .fix = "use an optimizer of Pianola's, hand both tensors of the GradScale to an operation that takes "
              "them, as the fused ones do, or train without a GradScaler"});
}

// The entry as a number.
double number(const c10::impl::GenericDict& state, const char* key) {
  const auto entry = state.find(key);
  if (entry == state.end()) {
    throw UsageError({.what = fmt::format("a state_dict of a GradScaler has '{}', this one does not", key),
                      .fix = "load what state_dict() of a GradScaler returned, of this one or torch's"});
  }
  if (entry->value().isDouble() || entry->value().isInt()) return entry->value().toScalar().toDouble();
  throw UsageError(
      {.what = fmt::format("'{}' in the state_dict must be a number, got {}", key, entry->value().tagKind())});
}

}  // namespace

GradScaler::GradScaler(c10::Device device, const GradScalerOptions& options)
    : device_(graph::usable_device(device)), options_(options) {
  check(options);
  const at::TensorOptions on_device = at::TensorOptions(at::kFloat).device(device_);
  scale_ = at::full({}, options.init_scale, on_device);
  growth_tracker_ = at::zeros({}, on_device.dtype(at::kInt));
  skipped_ = at::zeros({}, on_device.dtype(at::kDouble));
  no_scale_ = at::full({}, 1, on_device);
}

at::Tensor GradScaler::scale(const at::Tensor& loss) const {
  if (!options_.enabled) return loss;
  if (!loss.defined()) throw UsageError({.what = "the loss to scale is undefined"});
  if (!at::isFloatingType(loss.scalar_type())) {
    throw UsageError(
        {.what = fmt::format("the loss to scale must be floating point, got {}", c10::toString(loss.scalar_type()))});
  }
  if (loss.device() != device_) {
    throw UsageError(
        {.what = fmt::format("the loss to scale is on {}, the GradScaler on {}", loss.device().str(), device_.str())});
  }
  return loss.mul(scale_);
}

GradScaler::Mark* GradScaler::find(const Optimizer& optimizer) {
  const auto mark = std::ranges::find(marks_, &optimizer, &Mark::optimizer);
  return mark == marks_.end() ? nullptr : &*mark;
}

void GradScaler::erase(const Optimizer& optimizer) {
  std::erase_if(marks_, [&](const Mark& mark) { return mark.optimizer == &optimizer; });
}

// A step that begins: what a capture that failed has left of it, or an eager run before the capture, is no part of it.
void GradScaler::forget_other_context(const Optimizer& optimizer) {
  if (const Mark* mark = find(optimizer); mark != nullptr && mark->captured != is_capturing()) erase(optimizer);
}

// float32 []: 1 where a gradient is not finite, else 0. Multiplies gradients by `inverse_scale` on the way.
at::Tensor GradScaler::checked(const Optimizer& optimizer, const at::Tensor& inverse_scale, bool allow_half,
                               const char* call) const {
  std::map<at::ScalarType, std::vector<at::Tensor>> by_dtype;
  for (const at::Tensor& gradient : optimizer.gradients()) {
    check_gradient(gradient, device_, allow_half);
    by_dtype[gradient.scalar_type()].push_back(gradient);
  }
  if (by_dtype.empty()) {
    throw UsageError({.what = fmt::format("{}() of a GradScaler was called for an optimizer without gradients", call),
                      .fix = "run the backward pass of the scaled loss first, and zero_grad() before it"});
  }
  at::Tensor found_inf = at::zeros({}, scale_.options());
  for (const auto& [dtype, gradients] : by_dtype) {
    at::_amp_foreach_non_finite_check_and_unscale_(gradients, found_inf, inverse_scale);
  }
  return found_inf;
}

void GradScaler::unscale_(Optimizer& optimizer) {
  if (!options_.enabled) return;
  forget_other_context(optimizer);
  if (const Mark* mark = find(optimizer); mark != nullptr) {
    throw UsageError({.what = mark->stage == Stage::unscaled
                                  ? "unscale_() was called for this optimizer before, since the last update()"
                                  : "unscale_() was called after step(), which has unscaled the gradients",
                      .fix = kAfterException});
  }
  const at::NoGradGuard no_grad;
  const at::Tensor inverse_scale = scale_.to(at::kDouble).reciprocal().to(at::kFloat);
  at::Tensor found_inf = checked(optimizer, inverse_scale, /*allow_half=*/false, "unscale_");
  marks_.push_back({&optimizer, Stage::unscaled, is_capturing(), std::move(found_inf)});
}

void GradScaler::step(Optimizer& optimizer) {
  if (!options_.enabled) return optimizer.step();
  const Mark* mark = find(optimizer);
  if (mark != nullptr && mark->stage == Stage::unscaled && mark->captured != is_capturing()) {
    throw UsageError({.what = mark->captured ? "unscale_() was captured, and step() is called outside of the capture"
                                             : "unscale_() was called outside of the capture that step() is in",
                      .fix = kTogether});
  }
  forget_other_context(optimizer);
  mark = find(optimizer);
  if (mark != nullptr && mark->stage == Stage::stepped) {
    throw UsageError(
        {.what = "step() was called for this optimizer before, since the last update()", .fix = kAfterException});
  }
  const at::NoGradGuard no_grad;
  const bool unscaled = mark != nullptr;
  const at::Tensor found_inf = unscaled ? mark->found_inf : checked(optimizer, no_scale_, /*allow_half=*/true, "step");
  if (std::ranges::find(known_, std::pair{&std::as_const(optimizer), unscaled}) == known_.end()) {
    step_watched(optimizer, unscaled, found_inf);
  } else {
    optimizer.step({.scale = unscaled ? at::Tensor() : scale_, .found_inf = found_inf});
  }
  erase(optimizer);
  marks_.push_back({&optimizer, Stage::stepped, is_capturing(), found_inf});
}

void GradScaler::step_watched(Optimizer& optimizer, bool unscaled, const at::Tensor& found_inf) {
  UseWatch found_inf_watch(found_inf), scale_watch(scale_);
  {
    const trace::OpStream stream({&found_inf_watch, &scale_watch});
    optimizer.step({.scale = unscaled ? at::Tensor() : scale_, .found_inf = found_inf});
    stream.check();
  }
  check_used(found_inf_watch, "found_inf", "a step with infinite gradients would not be skipped");
  if (!unscaled) {
    check_used(scale_watch, "scale", "the parameters were changed by gradients that are too large by the scale");
  }
  known_.emplace_back(&optimizer, unscaled);
}

void GradScaler::check_marks() const {
  for (const Mark& mark : marks_) {
    if (mark.captured != is_capturing()) {
      throw UsageError({.what = mark.captured ? "step() was captured, and update() is called outside of the capture"
                                              : "step() was called outside of the capture that update() is in",
                        .fix = kTogether});
    }
    if (mark.stage == Stage::unscaled) {
      throw UsageError(
          {.what = "update() was called after unscale_() and without step() of the GradScaler: optimizer.step() "
                   "ignores found_inf",
           .fix = "call scaler.step(optimizer) instead of optimizer.step(), or abandon_step() if no step is wanted"});
    }
  }
}

// Of all optimizers, at most 1; undefined where there was no step.
at::Tensor GradScaler::take_found_inf() {
  check_marks();
  at::Tensor all;
  for (const Mark& mark : std::exchange(marks_, {})) {
    all = all.defined() ? all.add(mark.found_inf).clamp_max_(1) : mark.found_inf;
  }
  if (all.defined()) skipped_.add_(all);
  return all;
}

void GradScaler::update() {
  if (!options_.enabled) return;
  if (marks_.empty()) {
    throw UsageError({.what = "update() was called before step(): nothing has looked for infinite gradients",
                      .fix = "call scaler.step(optimizer) before, instead of optimizer.step()"});
  }
  const at::NoGradGuard no_grad;
  const at::Tensor found_inf = take_found_inf();
  at::_amp_update_scale_(scale_, growth_tracker_, found_inf, options_.growth_factor, options_.backoff_factor,
                         options_.growth_interval);
  frozen_ = frozen_ || is_capturing();
}

void GradScaler::update(double new_scale) {
  if (!options_.enabled) return;
  check_scale(new_scale, "new_scale");
  const at::NoGradGuard no_grad;
  (void)take_found_inf();
  scale_.fill_(new_scale);
}

void GradScaler::update(const at::Tensor& new_scale) {
  if (!options_.enabled) return;
  if (!new_scale.defined() || new_scale.numel() != 1 || !at::isFloatingType(new_scale.scalar_type()) ||
      new_scale.device() != device_) {
    throw UsageError({.what = fmt::format("new_scale must be one floating-point element on {}, got {}", device_.str(),
                                          new_scale.defined() ? fmt::format("{} of {} on {}", new_scale.numel(),
                                                                            c10::toString(new_scale.scalar_type()),
                                                                            new_scale.device().str())
                                                              : "an undefined tensor")});
  }
  const at::NoGradGuard no_grad;
  (void)take_found_inf();
  scale_.copy_(new_scale.view(at::IntArrayRef()));
}

void GradScaler::abandon_step() noexcept { marks_.clear(); }

at::Tensor GradScaler::skipped_steps() const { return skipped_.to(at::kLong); }

const at::Tensor& GradScaler::found_inf(const Optimizer& optimizer) const {
  const auto mark = std::ranges::find(marks_, &optimizer, &Mark::optimizer);
  if (mark != marks_.end()) return mark->found_inf;
  throw UsageError(
      {.what = "found_inf() was asked for an optimizer that was neither unscaled nor stepped since update()",
       .fix = "ask between unscale_() or step() and update()"});
}

std::vector<NamedTensor> GradScaler::state() const {
  return {{.name = "scale", .tensor = scale_},
          {.name = "growth_tracker", .tensor = growth_tracker_},
          {.name = "skipped_steps", .tensor = skipped_}};
}

c10::IValue GradScaler::state_dict() const {
  c10::impl::GenericDict state(c10::StringType::get(), c10::AnyType::get());
  if (!options_.enabled) return state;
  state.insert("scale", scale_.item().toDouble());
  state.insert("growth_factor", options_.growth_factor);
  state.insert("backoff_factor", options_.backoff_factor);
  state.insert("growth_interval", options_.growth_interval);
  state.insert("_growth_tracker", growth_tracker_.item().toLong());
  return state;
}

void GradScaler::load_state_dict(const c10::IValue& state) {
  if (!options_.enabled) return;
  if (!state.isGenericDict()) {
    throw UsageError({.what = fmt::format("a state_dict of a GradScaler is a dictionary, got {}", state.tagKind())});
  }
  const c10::impl::GenericDict entries = state.toGenericDict();
  if (entries.empty()) {
    throw UsageError({.what = "the state_dict is empty: it was saved by a GradScaler that was not enabled",
                      .fix = "train on without loading it, or construct this one with enabled = false"});
  }
  GradScalerOptions loaded = {.init_scale = number(entries, "scale"),
                              .growth_factor = number(entries, "growth_factor"),
                              .backoff_factor = number(entries, "backoff_factor"),
                              .growth_interval = static_cast<std::int64_t>(number(entries, "growth_interval"))};
  const auto tracker = static_cast<std::int64_t>(number(entries, "_growth_tracker"));
  check(loaded);
  check_at_least(0, "_growth_tracker", tracker);
  const bool same_factors = loaded.growth_factor == options_.growth_factor &&
                            loaded.backoff_factor == options_.backoff_factor &&
                            loaded.growth_interval == options_.growth_interval;
  if (frozen_ && !same_factors) {
    throw UsageError({.what = fmt::format("the state_dict has growth_factor {}, backoff_factor {} and growth_interval "
                                          "{}; a captured step goes on with {}, {} and {}",
                                          loaded.growth_factor, loaded.backoff_factor, loaded.growth_interval,
                                          options_.growth_factor, options_.backoff_factor, options_.growth_interval),
                      .fix = "load it before the capture, or construct the GradScaler with its values"});
  }
  const at::NoGradGuard no_grad;
  scale_.fill_(loaded.init_scale);
  growth_tracker_.fill_(tracker);
  options_ = loaded;
}

}  // namespace pianola

#include <pianola/training/finite_watch.hpp>

#include <pianola/core/number_check.hpp>
#include <pianola/graph/device_check.hpp>
#include <pianola/graph/graph.hpp>
#include <pianola/training/optimizer.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/log1p.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace pianola {
namespace {

// Note [The record freezes]
// The record is float32: a flag, the count of steps, and a slot per checked tensor. Two kernels keep it. The first
// subtracts the new values from their slots, each made so small that sums of finite ones never overflow, and counts the
// step; it is the fused SGD step, whose found_inf makes it do nothing from the first bad step on. The second is the
// gradient scaler's check over the slots, which raises the flag where one is NaN or infinite. So the record stays as
// the first bad step left it, and tells its number and every tensor that was bad in it.
// The host is sent the flag alone. Only where that is raised does it read the record, from the device itself: nothing
// can be half written then, and a flag that arrived late, from before a reset() or from a warm-up run that was undone,
// counts for nothing.
constexpr double kShrink = 0x1p-64;  // a power of two: counting stays exact
constexpr std::int64_t kFlag = 0, kSteps = 1, kSlots = 2;
constexpr float kMaxSteps = 0x1p24;     // adding 1 changes nothing any more
constexpr std::size_t kListLimit = 64;  // pairs of tensors that a multi-tensor kernel takes at once
constexpr double kInf = std::numeric_limits<double>::infinity();

std::uint32_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : static_cast<std::uint32_t>(tensor._version());
}

// Finite where the norm is: a float64 beyond float32's range must not become infinite.
at::Tensor as_float(const at::Tensor& norms) {
  if (norms.scalar_type() == at::kDouble) return at::log1p(norms).to(at::kFloat);
  return norms.to(at::kFloat);
}

// float32 []: not finite where an element is not.
at::Tensor value_of(const at::Tensor& tensor) {
  const at::Tensor plain = tensor.detach();
  if (plain.numel() == 1 && plain.scalar_type() != at::kDouble) return plain.to(at::kFloat).view(at::IntArrayRef());
  return as_float(at::linalg_vector_norm(plain, kInf));
}

// The same for each of many, in as few kernels as there are dtypes.
std::vector<at::Tensor> values_of(const std::vector<at::Tensor>& tensors) {
  std::map<at::ScalarType, std::vector<std::size_t>> by_dtype;
  for (std::size_t i = 0; i < tensors.size(); ++i) by_dtype[tensors[i].scalar_type()].push_back(i);
  std::vector<at::Tensor> values(tensors.size());
  for (const auto& [dtype, members] : by_dtype) {
    std::vector<at::Tensor> list;
    for (const std::size_t i : members) list.push_back(tensors[i].detach());
    const std::vector<at::Tensor> norms =
        at::_foreach_norm(list, kInf, dtype == at::kDouble ? at::kDouble : at::kFloat);
    for (std::size_t i = 0; i < members.size(); ++i) values[members[i]] = as_float(norms[i]);
  }
  return values;
}

// What another thread writes, or a device.
float arrived(const at::Tensor& word) { return *static_cast<const volatile float*>(word.const_data_ptr<float>()); }

void refuse_in_capture(const char* call) {
  if (!is_capturing()) return;
  throw UsageError({.what = fmt::format("{}() of a FiniteWatch was called inside a capture", call),
                    .fix = "call it after the replay; only check() and end_step() belong into the step"});
}

std::string in_words(const NonFiniteFinding& finding) {
  return fmt::format("'{}' is {} in step {}{}", finding.tensor, finding.is_nan ? "NaN" : "infinite", finding.step,
                     finding.step_is_exact ? "" : " or a later one");
}

// Enough of them to see which layers it is.
std::string listed(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 8;
  const std::span<const std::string> shown = std::span(names).first(std::min(names.size(), kShown));
  std::string text = fmt::format("'{}'", fmt::join(shown, "', '"));
  if (names.size() > kShown) text += fmt::format(" and {} more", names.size() - kShown);
  return text;
}

}  // namespace

NonFiniteError::~NonFiniteError() = default;

FiniteWatch::FiniteWatch(c10::Device device, const FiniteWatchOptions& options)
    : device_(graph::usable_device(device)), options_(options) {
  check_at_least(1, "FiniteWatchOptions::max_tensors", static_cast<std::int64_t>(options.max_tensors));
  const at::TensorOptions on_device = at::TensorOptions(at::kFloat).device(device_);
  record_ = at::zeros({kSlots + static_cast<std::int64_t>(options.max_tensors)}, on_device);
  flag_ = record_.select(0, kFlag);
  steps_ = record_.select(0, kSteps);
  one_step_ = at::full({}, -1 / kShrink, on_device);
  unscaled_ = at::full({}, 1, on_device);
  word_ = at::zeros({}, at::TensorOptions(at::kFloat).pinned_memory(device_.is_cuda()));
}

void FiniteWatch::check_usable(const at::Tensor& tensor, const std::string& name) const {
  if (!tensor.defined()) throw UsageError({.what = fmt::format("'{}' is undefined: there is nothing to check", name)});
  if (!at::isFloatingType(tensor.scalar_type())) {
    throw UsageError({.what = fmt::format("'{}' is {}: only floating-point tensors can be NaN or infinite", name,
                                          c10::toString(tensor.scalar_type()))});
  }
  if (tensor.device() != device_) {
    throw UsageError(
        {.what = fmt::format("'{}' is on {}, the FiniteWatch on {}", name, tensor.device().str(), device_.str()),
         .fix = "make a FiniteWatch for each device"});
  }
}

void FiniteWatch::check(std::string name, const at::Tensor& tensor) {
  check_usable(tensor, name);
  if (tensor.numel() == 0) return;
  const at::NoGradGuard no_grad;
  note({.names = {std::move(name)}, .values = {value_of(tensor)}, .versions = {}});
}

void FiniteWatch::check(std::span<const NamedTensor> tensors) {
  std::vector<std::string> names;
  std::vector<at::Tensor> list;
  for (const NamedTensor& named : tensors) {
    check_usable(named.tensor, named.name);
    if (named.tensor.numel() == 0) continue;
    names.push_back(named.name);
    list.push_back(named.tensor);
  }
  if (list.empty()) return;
  const at::NoGradGuard no_grad;
  note({.names = std::move(names), .values = values_of(list), .versions = {}});
}

void FiniteWatch::check_gradients(std::span<const NamedTensor> parameters) {
  if (!options_.gradients) return;
  std::vector<NamedTensor> gradients;
  for (const NamedTensor& parameter : parameters) {
    if (!parameter.tensor.defined()) check_usable(parameter.tensor, parameter.name);
    if (const at::Tensor& gradient = parameter.tensor.grad(); gradient.defined()) {
      gradients.push_back({.name = "gradient of " + parameter.name, .tensor = gradient});
    }
  }
  check(gradients);
}

void FiniteWatch::check_gradients(const Optimizer& optimizer) {
  std::vector<NamedTensor> parameters;
  for (const at::Tensor& parameter : optimizer.parameters()) {
    parameters.push_back({.name = fmt::format("parameter {}", parameters.size()), .tensor = parameter});
  }
  check_gradients(parameters);
}

void FiniteWatch::check_gradient_norms(std::vector<std::string> names, const at::Tensor& norms) {
  if (!options_.gradients || names.empty()) return;
  check_usable(norms, names.front());
  if (norms.dim() != 1 || static_cast<std::size_t>(norms.numel()) != names.size()) {
    throw UsageError({.what = fmt::format("check_gradient_norms() takes one norm for each name: got {} names and {} "
                                          "norms in {} dimensions",
                                          names.size(), norms.numel(), norms.dim())});
  }
  const at::NoGradGuard no_grad;
  note({.names = std::move(names), .values = {as_float(norms.detach()).contiguous()}, .versions = {}});
}

void FiniteWatch::note(Pending pending) {
  drop_other_context();
  for (const at::Tensor& value : pending.values) pending.versions.push_back(version_of(value));
  pending_.push_back(std::move(pending));
}

// What a capture that failed, or an eager run before one, has left behind is no part of this step.
void FiniteWatch::drop_other_context() noexcept {
  const bool capturing = is_capturing();
  if (captured_ != capturing) abandon_step();
  captured_ = capturing;
}

void FiniteWatch::abandon_step() noexcept {
  pending_.clear();
  counted_ = false;
}

std::int64_t FiniteWatch::slots_for(const std::vector<std::string>& names) {
  if (const auto known = slots_.find(names); known != slots_.end()) return known->second;
  const auto count = static_cast<std::int64_t>(names.size());
  if (used_ + count > static_cast<std::int64_t>(options_.max_tensors)) {
    throw UsageError({.what = fmt::format("{} tensors are checked, FiniteWatchOptions::max_tensors is {}",
                                          used_ + count, options_.max_tensors),
                      .fix = "raise it, and give a tensor the same name in every step"});
  }
  slots_.emplace(names, used_);
  return std::exchange(used_, used_ + count);
}

void FiniteWatch::flush() {
  if (pending_.empty() && counted_) return;
  const at::NoGradGuard no_grad;
  std::vector<std::string> names;
  std::vector<at::Tensor> targets, values;
  for (Pending& pending : std::exchange(pending_, {})) {
    for (std::size_t i = 0; i < pending.values.size(); ++i) {
      if (version_of(pending.values[i]) == pending.versions[i]) continue;
      throw UsageError({.what = fmt::format("'{}' was changed in place after check()", pending.names[i]),
                        .fix = "check it after the change, or change a copy"});
    }
    if (pending.values.size() > kListLimit / 2) pending.values = {at::stack(pending.values)};
    names.insert(names.end(), pending.names.begin(), pending.names.end());
    values.insert(values.end(), pending.values.begin(), pending.values.end());
  }
  const std::int64_t begin = slots_for(names);
  for (std::int64_t slot = kSlots + begin; const at::Tensor& value : values) {
    targets.push_back(record_.narrow(0, slot, value.numel()).view(value.sizes()));
    slot += value.numel();
  }
  if (!counted_) {
    targets.push_back(steps_);
    values.push_back(one_step_);
  }
  at::_fused_sgd_(targets, values, /*momentum_buffer_list=*/{}, /*weight_decay=*/0, /*momentum=*/0, /*lr=*/kShrink,
                  /*dampening=*/0, /*nesterov=*/false, /*maximize=*/false, /*is_first_step=*/false,
                  /*grad_scale=*/{}, /*found_inf=*/flag_);
  counted_ = true;
  if (names.empty()) return;
  const at::Tensor checked = record_.narrow(0, kSlots + begin, static_cast<std::int64_t>(names.size()));
  at::_amp_foreach_non_finite_check_and_unscale_({checked}, flag_, unscaled_);
}

at::Tensor FiniteWatch::found_inf() {
  drop_other_context();
  if (!pending_.empty()) flush();
  return flag_;
}

void FiniteWatch::end_step() {
  drop_other_context();
  flush();
  counted_ = false;
  const at::NoGradGuard no_grad;
  word_.copy_(flag_, /*non_blocking=*/true);
}

std::optional<NonFiniteFinding> FiniteWatch::find() const {
  refuse_in_capture("find");
  const at::Tensor copy = record_.cpu();
  const std::span<const float> record(copy.const_data_ptr<float>(), static_cast<std::size_t>(copy.numel()));
  if (record[kFlag] == 0) return std::nullopt;
  NonFiniteFinding finding = {.step = steps_before_ + static_cast<std::int64_t>(record[kSteps]),
                              .step_is_exact = record[kSteps] < kMaxSteps,
                              .tensor = {},
                              .is_nan = false,
                              .tensors = {}};
  for (const auto& [names, begin] : slots_) {  // of one of them alone: the record froze with it
    for (std::size_t i = 0; i < names.size(); ++i) {
      const float value = record[static_cast<std::size_t>(kSlots + begin) + i];
      if (std::isfinite(value)) continue;
      if (finding.tensors.empty()) {
        finding.tensor = names[i];
        finding.is_nan = std::isnan(value);
      }
      finding.tensors.push_back(names[i]);
    }
  }
  return finding;
}

void FiniteWatch::poll() {
  refuse_in_capture("poll");
  ++polls_;
  if (found_) stop(*found_);
  if (arrived(word_) == 0) return;
  found_ = find();
  if (!found_) {
    word_.fill_(0);  // it told of a step that was undone
    return;
  }
  if (found_->step < steps_before_ + polls_) stop(*found_);
}

void FiniteWatch::wait() {
  refuse_in_capture("wait");
  if (!found_) found_ = find();
  if (found_) stop(*found_);
}

void FiniteWatch::stop(const NonFiniteFinding& finding) const {
  throw NonFiniteError({.what = in_words(finding),
                        .where = fmt::format("not finite in that step: {}", listed(finding.tensors)),
                        .fix = "look at the step's batch, the learning rate, and divisions and logarithms; then call "
                               "reset() and continue from a checkpoint. Pass found_inf() to the optimizer's step, so "
                               "that a bad step leaves the parameters alone"});
}

void FiniteWatch::reset(std::int64_t steps_done) {
  refuse_in_capture("reset");
  check_at_least(0, "steps_done", steps_done);
  record_.zero_();
  word_.fill_(0);
  abandon_step();
  found_.reset();
  steps_before_ = steps_done;
  polls_ = 0;
}

}  // namespace pianola

#include <pianola/callable/parameter_gradients.hpp>

#include <pianola/callable/leaf_hook_checks.hpp>
#include <pianola/callable/leaf_scope.hpp>
#include <pianola/graph/copy_into.hpp>
#include <pianola/trace/quiet_scope.hpp>
#include <pianola/trace/references.hpp>

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_copy.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace pianola::callable {
namespace {

c10::Stream current_stream(c10::Device device) { return c10::impl::VirtualGuardImpl(device.type()).getStream(device); }

// Those that may serve as buffers.
std::vector<at::Tensor> adoptable(const std::vector<at::Tensor>& parameters, std::vector<at::Tensor> before) {
  for (std::size_t i = 0; i < before.size(); ++i) {
    const bool fits = before[i].defined() && before[i].layout() == at::kStrided &&
                      before[i].scalar_type() == parameters[i].scalar_type();
    if (!fits) before[i].reset();
  }
  return before;
}

}  // namespace

void GradientGroup::clear_idle() {
  std::vector<at::Tensor> memory;
  for (ParameterGradients* member : members_) {
    if (member->is_clear_ || !member->is_idle()) continue;
    memory.insert(memory.end(), member->buffers_.whole().begin(), member->buffers_.whole().end());
    member->is_clear_ = true;
  }
  if (memory.empty()) return;
  fill_with_minus_zero(memory);
  cleared_on_ = current_stream(memory.front().device());
}

void GradientGroup::wait_for_clear() const {
  if (!cleared_on_) return;
  const c10::Stream now = current_stream(cleared_on_->device());
  if (now == *cleared_on_) return;
  c10::Event cleared(now.device_type());
  cleared.record(*cleared_on_);
  cleared.block(now);
}

ParameterGradients::ParameterGradients(std::vector<at::Tensor> parameters, const std::vector<at::Tensor>& before,
                                       std::shared_ptr<GradientGroup> group)
    : parameters_(std::move(parameters)),
      buffers_(parameters_, adoptable(parameters_, before)),
      group_(std::move(group)) {
  const std::vector<at::Tensor> adopted = adoptable(parameters_, before);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& buffer = buffers_.tensors()[i];
    exposed_.push_back(adopted[i].defined() ? adopted[i] : alias_of(buffer));
    places_.push_back({.meta = torch::autograd::impl::materialize_autograd_meta(parameters_[i]),
                       .exposed = exposed_[i].unsafeGetTensorImpl(),
                       .placement = graph::Placement(*exposed_[i].unsafeGetTensorImpl())});
  }
  finish();
  group_->add(*this);
}

ParameterGradients::~ParameterGradients() { group_->remove(*this); }

void ParameterGradients::record(const std::vector<at::Tensor>& computed) const {
  at::_foreach_add_(buffers_.tensors(), computed);
}

at::Tensor& ParameterGradients::gradient(std::size_t i) const { return places_[i].meta->grad_; }

// `p.grad` may be the tensor we gave and yet look at other memory, or otherwise at the same (p.grad.data = ..., t_()).
bool ParameterGradients::is_ours(std::size_t i) const noexcept {
  const c10::TensorImpl* impl = gradient(i).unsafeGetTensorImpl();
  return impl == places_[i].exposed && places_[i].placement.is_of(*impl);
}

bool ParameterGradients::is_steady() const noexcept {
  bool steady = true;
  for (const Place& place : places_) {
    const c10::TensorImpl* impl = place.meta->grad_.unsafeGetTensorImpl();
    steady &= impl == place.exposed && place.placement.is_of(*impl);
    steady &= !may_be_hooked(*place.meta);
  }
  return steady;
}

const at::Tensor* ParameterGradients::hooked() const noexcept {
  for (std::size_t i = 0; i < places_.size(); ++i) {
    if (may_be_hooked(*places_[i].meta) && has_hooks(parameters_[i])) return &parameters_[i];
  }
  return nullptr;
}

const at::Tensor* ParameterGradients::hooked_accumulator() const noexcept {
  for (std::size_t i = 0; i < places_.size(); ++i) {
    if (accumulator_has_hooks(*places_[i].meta)) return &parameters_[i];
  }
  return nullptr;
}

// Somebody kept the gradient that was ours, or a view of it: it must not change under their hands.
bool ParameterGradients::is_held_elsewhere(std::size_t i) const {
  return trace::references_to(exposed_[i]) > 1 || buffers_.has_other_references(i);
}

bool ParameterGradients::is_idle() const {
  for (std::size_t i = 0; i < places_.size(); ++i) {
    if (gradient(i).defined() || is_held_elsewhere(i)) return false;
  }
  return true;
}

// torch::nn::Module::zero_grad(false) detaches: `p.grad` is another tensor on our memory then, and as good as ours.
void ParameterGradients::adopt_aliases() {
  for (std::size_t i = 0; i < places_.size(); ++i) {
    const at::Tensor& now = gradient(i);
    const at::Tensor& buffer = buffers_.tensors()[i];
    if (is_ours(i) || !now.defined() || now.scalar_type() != buffer.scalar_type() || now.sizes() != buffer.sizes() ||
        !graph::is_same_memory(buffer, now)) {
      continue;
    }
    exposed_[i] = now;
    places_[i].exposed = now.unsafeGetTensorImpl();
    places_[i].placement = graph::Placement(*now.unsafeGetTensorImpl());
  }
}

// A tensor that was made to look elsewhere is no longer ours: where that is in our memory, it counts as somebody else's
// reference to it from now on.
void ParameterGradients::let_go_of_moved() {
  for (std::size_t i = 0; i < places_.size(); ++i) {
    if (!places_[i].placement.is_of(*places_[i].exposed)) renew(i);
  }
}

void ParameterGradients::renew(std::size_t i) {
  exposed_[i] = alias_of(buffers_.tensors()[i]);
  places_[i].exposed = exposed_[i].unsafeGetTensorImpl();
  places_[i].placement = graph::Placement(*places_[i].exposed);
}

void ParameterGradients::before_replay(bool wanted, bool steady, const std::vector<std::size_t>& left_alone,
                                       bool apart) {
  replay_ = {};
  replay_.left_alone.assign(left_alone.empty() ? 0 : places_.size(), false);
  for (const std::size_t i : left_alone) replay_.left_alone[i] = true;
  if (!steady) adopt_aliases();
  if (!wanted) {
    save(all());
    const trace::QuietScope quiet;
    if (apart) buffers_.clear(all());
    return;
  }
  if (!steady) return prepare_to_add();
  save(left_alone);
}

std::vector<at::Tensor> ParameterGradients::computed(const std::vector<std::size_t>& which) const {
  const trace::QuietScope quiet;
  return copies_of(select(buffers_.tensors(), which));
}

void ParameterGradients::after_replay() {
  if (replay_.to_hand_out.empty() && replay_.to_restore.empty()) [[likely]]
    return;
  const trace::QuietScope quiet;
  std::vector<at::Tensor> computed = select(buffers_.tensors(), replay_.to_hand_out);
  if (!replay_.to_restore.empty()) {  // first, because what gets the result may lie in a buffer that is put back
    computed = copies_of(computed);
    at::_foreach_copy_(select(buffers_.tensors(), replay_.to_restore), replay_.saved);
    replay_.saved.clear();
  }
  hand_out(computed);
}

void ParameterGradients::undo_replay() {
  for (const std::size_t i : replay_.exposed_all ? all() : replay_.exposed) gradient(i).reset();
  if (!replay_.to_restore.empty()) {
    const trace::QuietScope quiet;
    at::_foreach_copy_(select(buffers_.tensors(), replay_.to_restore), replay_.saved);
  }
  replay_ = {};
}

void ParameterGradients::prepare_to_add() {
  const trace::QuietScope quiet;
  let_go_of_moved();
  if (!is_clear_) group_->clear_idle();
  const bool was_clear = std::exchange(is_clear_, false);
  if (was_clear) group_->wait_for_clear();
  if (was_clear && replay_.left_alone.empty() && is_idle()) {
    for (std::size_t i = 0; i < places_.size(); ++i) expose(i);
    replay_.exposed_all = true;
    return;
  }
  std::vector<std::size_t> others, held, to_expose;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    if (is_left_alone(i)) {
      held.push_back(i);
      continue;
    }
    if (is_ours(i)) continue;
    others.push_back(i);
    const bool is_held = is_held_elsewhere(i);
    if (is_held) held.push_back(i);
    (gradient(i).defined() || is_held ? replay_.to_hand_out : to_expose).push_back(i);
  }
  save(std::move(held));
  buffers_.clear(others);
  for (const std::size_t i : to_expose) expose(i);
  replay_.exposed = std::move(to_expose);
}

// The tensor of last time will do, unless somebody has it.
void ParameterGradients::expose(std::size_t i) {
  if (trace::references_to(exposed_[i]) > 1) renew(i);
  gradient(i) = exposed_[i];
}

void ParameterGradients::save(std::vector<std::size_t> which) {
  if (which.empty()) return;
  const trace::QuietScope quiet;
  replay_.to_restore = std::move(which);
  replay_.saved = copies_of(select(buffers_.tensors(), replay_.to_restore));
}

// As AccumulateGrad: an undefined gradient becomes the result, a defined one gets it added in place. Undefined ones are
// handed out where somebody holds the buffer, and so get copies.
void ParameterGradients::hand_out(const std::vector<at::Tensor>& computed) {
  std::vector<at::Tensor> defined, to_add;
  for (std::size_t k = 0; k < computed.size(); ++k) {
    at::Tensor& now = gradient(replay_.to_hand_out[k]);
    if (now.defined()) {
      defined.push_back(now);
      to_add.push_back(computed[k]);
    } else {
      now = computed[k];
    }
  }
  if (!defined.empty()) at::_foreach_add_(defined, to_add);
}

std::vector<std::size_t> ParameterGradients::all() const {
  std::vector<std::size_t> indices(places_.size());
  std::iota(indices.begin(), indices.end(), std::size_t{0});
  return indices;
}

}  // namespace pianola::callable

#include <pianola/callable/step_gradients.hpp>

#include <pianola/callable/leaf_hook_checks.hpp>
#include <pianola/callable/leaf_hooks.hpp>
#include <pianola/trace/parts.hpp>
#include <pianola/trace/plain_check.hpp>
#include <pianola/trace/quiet_scope.hpp>
#include <pianola/trace/references.hpp>
#include <pianola/trace/tensors_of.hpp>
#include <pianola/trace/uses_values.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

namespace pianola::callable {
namespace {

const void* identity_of(const at::Tensor& tensor) {
  const c10::StorageImpl* const storage = trace::storage_of(tensor);
  return storage != nullptr ? static_cast<const void*>(storage) : tensor.unsafeGetTensorImpl();
}

// A gradient whose values a copy takes along, to one that lies in the same way.
bool is_plain(const at::Tensor& gradient) {
  return gradient.defined() && gradient.layout() == at::kStrided && !gradient.requires_grad() &&
         !gradient.is_inference() && !gradient.is_conj() && !gradient.is_neg() &&
         gradient.is_non_overlapping_and_dense() && trace::oddity_of_input(gradient) == trace::Oddity::none;
}

bool lie_alike(const at::Tensor& one, const at::Tensor& other) {
  return one.sizes() == other.sizes() && one.strides() == other.strides() && one.scalar_type() == other.scalar_type() &&
         one.device() == other.device();
}

void copy_all(const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from) {
  const trace::QuietScope quiet;
  const at::NoGradGuard no_grad;
  if (!to.empty()) at::_foreach_copy_(to, from);
}

}  // namespace

StepGradients::Leaf::Leaf(const at::Tensor& leaf)
    : tensor(leaf.getIntrusivePtr()),
      meta(torch::autograd::impl::materialize_autograd_meta(leaf)),
      before(meta->grad_),
      found(before.getIntrusivePtr()),
      was_defined(before.defined()),
      hooks(mark_of_hooks(leaf)),
      placement(*before.unsafeGetTensorImpl()),
      made_placement(placement),
      found_parts(before) {}

void StepGradients::Leaf::make_own() {
  if (!is_plain(before)) return;
  const trace::QuietScope quiet;
  const at::NoGradGuard no_grad;
  own = before.clone();
  meta->grad_ = own;
  found = trace::WeakTensor(own.getIntrusivePtr());
  placement = graph::Placement(*own.unsafeGetTensorImpl());
}

StepGradients::StepGradients(const std::vector<at::Tensor>& leaves, const LeafSet& own, bool may_be_taken_back)
    : may_be_taken_back_(may_be_taken_back) {
  for (const at::Tensor& leaf : leaves) {
    leaves_.emplace_back(leaf);
    if (own.contains(leaf.unsafeGetTensorImpl())) leaves_.back().make_own();
    any_own_ = any_own_ || leaves_.back().own.defined();
    const at::Tensor found = leaves_.back().meta->grad_;
    if (!found.defined()) continue;
    leaves_of_gradients_.emplace(identity_of(found), leaves_.size() - 1);
    if (found.layout() == at::kSparse) leaves_.back().copy = found.clone();
    trace::for_each_part(found, [&](const at::Tensor& part) {
      if (!part.is_same(found)) leaves_of_gradients_.emplace(identity_of(part), leaves_.size() - 1);
    });
  }
}

void StepGradients::put_back() const {
  for (const Leaf& leaf : leaves_) {
    if (!leaf.tensor.expired()) leaf.meta->grad_ = leaf.before;
    if (!leaf.copy.defined()) continue;
    const trace::QuietScope quiet;
    at::Tensor(leaf.before).copy_(leaf.copy);  // it may have grown
  }
}

bool StepGradients::any_is_sparse() const {
  return std::any_of(leaves_.begin(), leaves_.end(), [](const Leaf& leaf) {
    if (leaf.tensor.expired()) return false;
    const at::Tensor& now = leaf.meta->grad_;
    const bool made_one = now.defined() && now.layout() != at::kStrided && !now.is_same(leaf.before);
    return made_one || (leaf.copy.defined() && leaf.uses_found);
  });
}

void StepGradients::note_use(const at::Tensor& tensor) {
  const auto [first, last] = leaves_of_gradients_.equal_range(identity_of(tensor));
  for (auto one = first; one != last; ++one) leaves_[one->second].uses_found = true;
}

void StepGradients::note_handed_out(const std::vector<at::Tensor>& results) {
  const auto note = [this](const at::Tensor& part) { note_use(part); };
  for (const at::Tensor& result : results) trace::for_each_part(result, note);
  for (const Leaf& leaf : leaves_) {
    if (leaf.tensor.expired()) continue;
    const at::Tensor& left = leaf.meta->grad_;
    if (left.unsafeGetTensorImpl() != leaf.found._unsafe_get_target()) trace::for_each_part(left, note);
  }
}

void StepGradients::note_memory_beside(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (any_own_ && !had(tensor)) beside_.add_storage_of(tensor);
  }
}

bool StepGradients::may_be_own(const std::vector<at::Tensor>& seen) const {
  if (!any_own_) return true;
  trace::MemoryRanges own;
  trace::MemoryRanges beside = beside_;
  for (const Leaf& leaf : leaves_) {
    const at::Tensor& left = leaf.meta->grad_;
    if (leaf.own.defined()) own.add(leaf.own);
    if (!left.is_same(leaf.own)) beside.add_storage_of(left);
    if (!leaf.own.defined() || !leaf.uses_found) continue;
    const bool keeps_or_drops = leaf.was_dropped || left.is_same(leaf.own);
    const bool is_seen = std::any_of(seen.begin(), seen.end(), [&](const at::Tensor& parameter) {
      return parameter.unsafeGetTensorImpl() == leaf.tensor._unsafe_get_target();
    });
    if (!keeps_or_drops || is_seen || !leaf.placement.is_of(*leaf.own.unsafeGetTensorImpl())) return false;
  }
  return !own.overlap(beside) && callers_are_apart(beside);
}

// Those that the next replay finds, or those that were found before the capture.
bool StepGradients::callers_are_apart(const trace::MemoryRanges& beside) const {
  trace::MemoryRanges callers;
  for (const Leaf& leaf : leaves_) {
    if (!leaf.own.defined() || leaf.tensor.expired()) continue;
    callers.add(leaf.before.defined() ? leaf.before : leaf.meta->grad_);
    if (leaf.made.defined()) callers.add(leaf.made);
  }
  trace::MemoryRanges fixed;
  for (const Leaf& leaf : leaves_) {
    if (leaf.own.defined() || leaf.tensor.expired()) continue;
    if (leaf.made.defined()) callers.add(leaf.made);
    if (!leaf.meta->grad_.is_same(leaf.made)) fixed.add_storage_of(leaf.meta->grad_);
  }
  return !callers.overlap_each_other() && !callers.overlap(beside) && !callers.overlap(fixed);
}

void StepGradients::finish(bool all_seen) {
  leaves_of_gradients_.clear();
  let_go_.clear();
  for (Leaf& leaf : leaves_) {
    const at::Tensor before = std::exchange(leaf.before, at::Tensor());
    if (may_be_taken_back_) leaf.call_found = before;
    const at::Tensor found = leaf.own.defined() ? leaf.own : before;
    leaf.copy = at::Tensor();
    if (leaf.tensor.expired()) continue;
    if (leaf.was_dropped && leaf.was_defined) {
      leaf.after = After::dropped;
    } else if (!leaf.meta->grad_.is_same(found)) {
      leaf.made = leaf.meta->grad_;
      leaf.made_placement = graph::Placement(*leaf.made.unsafeGetTensorImpl());
      leaf.made_parts = GradientParts(leaf.made);
      leaf.after = leaf.made.defined() ? After::made : After::dropped;
    } else if (all_seen && leaf.was_defined && !leaf.uses_found) {
      leaf.after = After::unused;
    }
    const bool is_used = leaf.after == After::kept || leaf.uses_found;
    if (is_used && before.defined() && !leaf.own.defined()) used_.push_back(trace::storage_of(before));
    if (!leaf.own.defined()) continue;
    leaf.meta->grad_ = before;  // for the first replay
    if (leaf.after != After::kept && !leaf.uses_found) leaf.own = at::Tensor();
  }
  knows_found_ = may_be_taken_back_;
  any_own_ = std::any_of(leaves_.begin(), leaves_.end(), [](const Leaf& leaf) { return leaf.own.defined(); });
  std::sort(used_.begin(), used_.end());
}

void StepGradients::count_references() {
  std::vector<at::Tensor> made;
  for (Leaf& leaf : leaves_) {
    leaf.made_parts.count_references();
    trace::for_each_part(leaf.made, [&](const at::Tensor& part) { made.push_back(part); });
  }
  memory_ = MadeMemory::of(made);
}

// A graph repeats what hooks do to a gradient, and leaves out what was registered later.
bool StepGradients::Leaf::has_the_same_hooks() const {
  return may_have_hooks(*meta) ? mark_of_hooks(at::Tensor(tensor.lock())) == hooks : hooks == 0;
}

bool StepGradients::Leaf::is_as_captured() const {
  if (!has_the_same_hooks()) [[unlikely]]
    return false;
  if (after == After::unused) return meta->grad_.defined();
  const at::Tensor& now = meta->grad_;
  if (after == After::kept || uses_found) {
    const bool is_found = finds_what_it_uses();
    if (after == After::kept || !is_found) return is_found;
  }
  if (was_defined != now.defined()) return false;  // the host may have asked
  if (after == After::dropped) return true;
  const std::size_t ours = now.is_same(made) ? 2 : 1;
  // Few have been seen by Python: only those are asked for its reference.
  return (made.use_count() == ours || trace::references_to(made) == ours) &&
         made_placement.is_of(*made.unsafeGetTensorImpl()) && made_parts.are_of(made);
}

bool StepGradients::Leaf::finds_what_it_uses() const {
  const at::Tensor& now = meta->grad_;
  if (own.defined()) return is_plain(now) && lie_alike(now, own) && (!holders || holders_of_own() <= *holders);
  return now.unsafeGetTensorImpl() == found._unsafe_get_target() && placement.is_of(*now.unsafeGetTensorImpl()) &&
         found_parts.are_of(now);
}

std::size_t StepGradients::Leaf::holders_of_own() const {
  return trace::references_to(own) + trace::references_to(own.storage());
}

bool StepGradients::are_as_captured() const {
  return std::all_of(leaves_.begin(), leaves_.end(),
                     [](const Leaf& leaf) { return leaf.tensor.expired() || leaf.is_as_captured(); }) &&
         !memory_->is_held() && (!any_own_ || callers_are_apart(beside_));
}

bool StepGradients::are_among(std::span<const at::Tensor> inputs) const {
  return std::any_of(inputs.begin(), inputs.end(), [&](const at::Tensor& input) {
    const c10::StorageImpl* const storage = trace::storage_of(input);
    if (storage == nullptr) return false;
    return std::binary_search(used_.begin(), used_.end(), storage) ||
           (any_own_ && std::any_of(leaves_.begin(), leaves_.end(), [&](const Leaf& leaf) {
              return leaf.own.defined() && leaf.meta->grad_.defined() && trace::storage_of(leaf.meta->grad_) == storage;
            }));
  });
}

LeafSet StepGradients::replaced() const {
  LeafSet leaves;
  for (const Leaf& leaf : leaves_) {
    const bool keeps_or_drops = leaf.after == After::kept || (leaf.after == After::dropped && leaf.uses_found);
    const bool is_replaced = !leaf.tensor.expired() && keeps_or_drops && leaf.was_defined &&
                             leaf.meta->grad_.defined() && !leaf.finds_what_it_uses();
    if (is_replaced) leaves.insert(leaf.tensor._unsafe_get_target());
  }
  return leaves;
}

void StepGradients::copy_in() {
  if (!any_own_) return;
  std::vector<at::Tensor> to, from;
  for (Leaf& leaf : leaves_) {
    if (!leaf.own.defined() || leaf.tensor.expired()) continue;
    if (!leaf.holders) leaf.holders = leaf.holders_of_own();
    to.push_back(leaf.own);
    from.push_back(leaf.meta->grad_);
  }
  copy_all(to, from);
  for (Leaf& leaf : leaves_) {
    if (!leaf.own.defined() || leaf.tensor.expired()) continue;
    leaf.callers = std::exchange(leaf.meta->grad_, leaf.own);
    leaf.writes = leaf.own._version();
  }
}

void StepGradients::copy_out() {
  if (!any_own_) return;
  std::vector<at::Tensor> to, from;
  for (Leaf& leaf : leaves_) {
    const at::Tensor callers = std::exchange(leaf.callers, at::Tensor());
    if (!callers.defined()) continue;
    if (leaf.meta->grad_.is_same(leaf.own)) leaf.meta->grad_ = callers;
    if (!leaf.writes_found && leaf.own._version() == leaf.writes) continue;  // no graph's writes are counted
    from.push_back(leaf.own);
    to.push_back(callers);
  }
  copy_all(to, from);
}

void StepGradients::note_found() {
  if (std::exchange(knows_found_, true)) return;
  for (Leaf& leaf : leaves_) {
    if (!leaf.tensor.expired()) leaf.call_found = leaf.meta->grad_;
  }
}

void StepGradients::forget_found() {
  if (!std::exchange(knows_found_, false)) return;
  for (Leaf& leaf : leaves_) leaf.call_found = at::Tensor();
}

void StepGradients::give_back_found() {
  for (Leaf& leaf : leaves_) {
    if (!leaf.tensor.expired()) leaf.meta->grad_ = leaf.call_found;
    leaf.callers = at::Tensor();
  }
  forget_found();
}

void StepGradients::leave_as_captured() const {
  for (const Leaf& leaf : leaves_) {
    if (leaf.is_left() || leaf.tensor.expired()) continue;
    if (!leaf.meta->grad_.is_same(leaf.made)) leaf.meta->grad_ = leaf.made;
  }
}

void StepGradients::begin_run() {
  operations_ = 0;
  for (Leaf& leaf : leaves_) {
    leaf.seen = leaf.meta->grad_.unsafeGetTensorImpl();
    leaf.changed_at = leaf.made_from = Leaf::kNever;
    leaf.uses_found = leaf.writes_found = false;
  }
}

void StepGradients::end_run() {
  for (Leaf& leaf : leaves_) leaf.was_dropped = !leaf.meta->grad_.defined();
}

void StepGradients::on_op_begin(const trace::OpSpan& op) {
  ++operations_;
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    if (!trace::uses_values(*op.info)) break;
    trace::for_each_tensor(op.inputs[i], [&](const at::Tensor& tensor) {
      const auto [first, last] = leaves_of_gradients_.equal_range(identity_of(tensor));
      for (auto one = first; one != last; ++one) {
        Leaf& leaf = leaves_[one->second];
        leaf.uses_found = true;
        leaf.writes_found = leaf.writes_found || op.info->writes[i];
      }
    });
  }
  for (Leaf& leaf : leaves_) {
    const c10::TensorImpl* now = leaf.meta->grad_.unsafeGetTensorImpl();
    if (now == leaf.seen) [[likely]]
      continue;
    leaf.seen = now;
    if (!leaf.uses_found) let_go_of_found(leaf);
    leaf.changed_at = std::min(leaf.changed_at, operations_);
    leaf.made_from = operations_;
  }
}

// What others hold they may still use.
void StepGradients::let_go_of_found(Leaf& leaf) {
  if (may_be_taken_back_ || !leaf.before.defined() || leaf.own.defined() || leaf.copy.defined() ||
      trace::references_to(leaf.before) != 1)
    return;
  const auto keep_address_of = [&](const at::Tensor& tensor) {
    if (tensor.has_storage()) let_go_.push_back(tensor.storage().getWeakStorageImpl());
  };
  keep_address_of(leaf.before);
  trace::for_each_part(leaf.before, keep_address_of);
  leaf.before = at::Tensor();
}

void StepGradients::leave_as_at(std::size_t operation) const {
  if (operation == 0) return;
  for (const Leaf& leaf : leaves_) {
    if (leaf.is_left() || leaf.tensor.expired() || operation < leaf.changed_at) continue;
    leaf.meta->grad_ = operation < leaf.made_from ? at::Tensor() : leaf.made;
  }
}

bool StepGradients::covers(const at::Tensor& leaf) const {
  return std::any_of(leaves_.begin(), leaves_.end(), [&](const Leaf& known) {
    return known.tensor._unsafe_get_target() == leaf.unsafeGetTensorImpl();
  });
}

bool StepGradients::had(const at::Tensor& gradient) const {
  return std::any_of(leaves_.begin(), leaves_.end(), [&](const Leaf& leaf) {
    return leaf.found._unsafe_get_target() == gradient.unsafeGetTensorImpl();
  });
}

}  // namespace pianola::callable

#include <pianola/verify/state.hpp>

#include <pianola/core/error.hpp>
#include <pianola/trace/plain_check.hpp>
#include <pianola/trace/quiet_scope.hpp>
#include <pianola/trace/storage_bytes.hpp>
#include <pianola/trace/tensors_of.hpp>
#include <pianola/verify/devices.hpp>

#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/clone.h>

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <utility>

namespace pianola::verification {
namespace {

void check(const NamedTensor& state) {
  if (!state.tensor.defined()) throw UsageError({.what = fmt::format("'{}' in `state` is undefined", state.name)});
  if (const auto odd = trace::oddity_in_step(state.tensor); odd != trace::Oddity::none) {
    throw UsageError(trace::refuse_input(odd, fmt::format("'{}' in `state`", state.name), state.tensor));
  }
  if (trace::storage_of(state.tensor) == nullptr || state.tensor.is_meta()) {
    throw UsageError(
        {.what = fmt::format("'{}' in `state` has no memory of its own, so it cannot be put back", state.name),
         .fix = "list dense tensors; of a sparse one its indices and values"});
  }
}

bool is_zero(const at::Tensor& tensor) {
  const trace::QuietScope quiet;
  return !tensor.any().item<bool>();
}

// Our own writes into the user's tensors: below autograd, so that their versions stay, and those of inference mode too.
class PlainWrites {
 private:
  trace::QuietScope quiet_;
  at::AutoDispatchBelowADInplaceOrView below_autograd_;
};

// A storage that was resized since keeps its size: what both have in common is put back.
void put_back(const c10::Storage& storage, const at::Tensor& copy) {
  const PlainWrites plain;
  const at::Tensor bytes = trace::bytes_of(storage);
  const std::int64_t common = std::min(bytes.numel(), copy.numel());
  bytes.narrow(0, 0, common).copy_(copy.narrow(0, 0, common));
}

std::vector<at::Generator> default_generators() {
  std::vector<at::Generator> all = {at::globalContext().defaultGenerator(c10::kCPU)};
  for (const c10::Device& device : cuda_devices_in_use()) {
    all.push_back(at::globalContext().defaultGenerator(device));
  }
  return all;
}

}  // namespace

State::State(std::vector<NamedTensor> listed, const std::vector<at::Generator>& more, Copies& copies)
    : listed_(std::move(listed)), copies_(copies), at_start_(GraphMemory::now()), generators_(default_generators()) {
  for (const at::Generator& generator : generators_) {
    generator_names_.push_back(fmt::format("generator of {}", generator.device().str()));
  }
  for (std::size_t i = 0; i < more.size(); ++i) {
    if (!more[i].defined()) throw UsageError({.what = "an entry of `generators` is undefined"});
    if (std::ranges::find(generators_, more[i]) != generators_.end()) continue;
    generators_.push_back(more[i]);
    generator_names_.push_back(fmt::format("generators[{}] of {}", i, more[i].device().str()));
  }
  for (const NamedTensor& state : listed_) {
    check(state);
    track(state.tensor.storage());
  }
  for (const NamedTensor& state : listed_) {
    if (!state.tensor.is_leaf()) continue;
    add_leaf(state.tensor);
    if (leaves_.size() > leaf_names_.size()) leaf_names_.push_back(state.name);
  }
  first_generators_.remember(generators_);
}

bool State::track(const c10::Storage& storage) {
  if (storage.nbytes() == 0 || storage.data() == nullptr) return false;
  if (!known_storages_.insert(storage.unsafeGetStorageImpl()).second) return false;
  tracked_.push_back({.storage = storage, .first = copies_.of(trace::bytes_of(storage))});
  return true;
}

// Note [Zeros that stand for no gradient]
// A capture that begins without gradients ends with static ones, filled with zeros (a result of the graph, which an
// optimizer outside it needs). Eager has to start where the captured step did, without: it would add to them, and adding
// to +0 turns -0 into +0. For the same reason an undefined gradient of eager's equals zeros of the graph.
void State::add_leaf(const at::Tensor& tensor) {
  if (!known_leaves_.insert(tensor.unsafeGetTensorImpl()).second) return;
  Leaf leaf{.tensor = tensor, .first = tensor.grad(), .first_eager = tensor.grad(), .fixed = {}};
  if (leaf.first.defined() && trace::storage_of(leaf.first) != nullptr) {
    track(leaf.first.storage());
    if (at_start_.holds(leaf.first) && is_zero(leaf.first)) leaf.first_eager.reset();
  }
  leaves_.push_back(std::move(leaf));
}

bool State::is_gradient(const c10::StorageImpl* storage) const {
  return std::any_of(leaves_.begin(), leaves_.end(), [&](const Leaf& leaf) {
    const at::Tensor& gradient = leaf.tensor.grad();
    return gradient.defined() && trace::storage_of(gradient) == storage;
  });
}

// A gradient that an earlier step made is eager's own, and gone with the next rewind().
bool State::note_write(const c10::Storage& storage) {
  const c10::StorageImpl* identity = storage.unsafeGetStorageImpl();
  if (known_storages_.count(identity) != 0 || is_gradient(identity) || !track(storage)) return false;
  found_.push_back(storage);
  return true;
}

void State::note_leaf(const at::Tensor& tensor) { add_leaf(tensor); }

bool State::note_generator(const at::Generator& generator) {
  if (std::ranges::find(generators_, generator) != generators_.end()) return false;
  generators_.push_back(generator);
  first_generators_.remember(generators_);  // those that are known keep their state
  return true;
}

void State::rewind(Side side) {
  for (const Tracked& tracked : tracked_) put_back(tracked.storage, tracked.first);
  for (const Leaf& leaf : leaves_) {
    const bool fixed = side == Side::graphed && leaf.fixed.defined();
    leaf.tensor.mutable_grad() = fixed ? leaf.fixed : side == Side::graphed ? leaf.first : leaf.first_eager;
    if (!fixed || leaf.fixed._is_zerotensor()) continue;
    const PlainWrites plain;
    leaf.first.defined() && leaf.first.sizes() == leaf.fixed.sizes() ? leaf.fixed.copy_(leaf.first)
                                                                     : leaf.fixed.zero_();
  }
  first_generators_.restore();
}

void State::note_static_gradients() {
  std::optional<GraphMemory> memory;
  for (Leaf& leaf : leaves_) {
    const at::Tensor& gradient = leaf.tensor.grad();
    if (!gradient.defined() || gradient.is_same(leaf.first) || gradient.is_same(leaf.fixed)) continue;
    if (!memory) memory = GraphMemory::now();
    if (memory->holds(gradient)) leaf.fixed = gradient;
  }
}

void State::finish() { rewind(Side::graphed); }

StateCopy State::copy(const StateCopy& earlier) const {
  std::vector<at::Tensor> gradients, found;
  for (const Leaf& leaf : leaves_) gradients.push_back(leaf.tensor.grad());
  for (const c10::Storage& storage : found_) found.push_back(trace::bytes_of(storage));
  return {.tensors = copies_.of(tensors(), earlier.tensors),
          .gradients = copies_.of(gradients, earlier.gradients),
          .found = copies_.of(found, earlier.found),
          .generators = generator_states()};
}

// What was found later is as it was then: nobody had written it.
void State::load(const StateCopy& then) {
  rewind(Side::eager);
  const PlainWrites plain;
  for (std::size_t i = 0; i < listed_.size(); ++i) listed_[i].tensor.copy_(then.tensors[i]);
  for (std::size_t i = 0; i < then.gradients.size(); ++i) {
    const at::Tensor& gradient = then.gradients[i];
    at::Tensor& now = leaves_[i].tensor.mutable_grad();
    if (now.defined() && gradient.defined() && trace::storage_of(now) != nullptr) {
      now.copy_(gradient);
    } else {
      now = gradient.defined() ? gradient.to(leaves_[i].tensor.device(), gradient.scalar_type(), false, /*copy=*/true)
                               : gradient;
    }
  }
  for (std::size_t i = 0; i < then.found.size(); ++i) put_back(found_[i], then.found[i]);
  for (std::size_t i = 0; i < then.generators.size(); ++i) {
    at::Generator generator = generators_[i];
    const std::lock_guard lock(generator.mutex());
    generator.set_state(then.generators[i]);
  }
}

std::vector<at::Tensor> State::tensors() const {
  std::vector<at::Tensor> tensors;
  for (const NamedTensor& state : listed_) tensors.push_back(state.tensor);
  return tensors;
}

std::vector<std::string> State::leaf_names() const { return leaf_names_; }

std::vector<at::Tensor> State::gradients() const {
  std::vector<at::Tensor> gradients;
  for (std::size_t i = 0; i < leaf_names_.size(); ++i) gradients.push_back(leaves_[i].tensor.grad());
  return gradients;
}

std::vector<at::Tensor> State::generator_states() const {
  const trace::QuietScope quiet;
  std::vector<at::Tensor> states;
  for (at::Generator generator : generators_) {
    const std::lock_guard lock(generator.mutex());
    states.push_back(generator.get_state());
  }
  return states;
}

std::vector<at::Tensor> State::everything() const {
  std::vector<at::Tensor> all = tensors();
  for (const Leaf& leaf : leaves_) {
    for (const at::Tensor& gradient : {leaf.tensor.grad(), leaf.fixed}) {
      if (gradient.defined()) all.push_back(gradient);
    }
  }
  return all;
}

}  // namespace pianola::verification

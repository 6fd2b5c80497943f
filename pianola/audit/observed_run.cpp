#include <pianola/audit/observed_run.hpp>

#include <algorithm>

namespace pianola::auditing {

Memory Memory::of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return {};
  return {.identity = tensor.storage().unsafeGetStorageImpl(), .storage = tensor.storage().getWeakStorageImpl()};
}

const OutsideMemory* ObservedRun::find_outside(const void* identity) const {
  const auto found = outside_at.find(identity);
  return found == outside_at.end() ? nullptr : &outside[found->second];
}

std::optional<std::size_t> ObservedRun::input_at(const void* identity, const void* address) const {
  std::optional<std::size_t> found;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].memory.identity != identity || identity == nullptr) continue;
    if (inputs[i].address == address) return i;
    if (!found) found = i;
  }
  return found;
}

bool ObservedRun::is_gradient_of_input(const void* identity) const {
  return identity != nullptr && std::any_of(gradients.begin(), gradients.end(), [&](const GradientNote& gradient) {
           const bool is_gradient = gradient.before.identity == identity || gradient.after.identity == identity;
           return is_gradient && input_at(gradient.leaf_memory.identity, nullptr).has_value();
         });
}

const Survivor* ObservedRun::find_survivor(const void* identity) const {
  const auto found = std::find_if(survivors.begin(), survivors.end(),
                                  [&](const Survivor& survivor) { return survivor.memory.identity == identity; });
  return found == survivors.end() ? nullptr : &*found;
}

std::string ObservedRun::name_of(const void* identity, const void* address) const {
  const NamedMemory* found = nullptr;
  for (const NamedMemory& named : names) {
    if (named.memory.identity != identity || identity == nullptr) continue;
    if (named.address == address) return named.name;
    if (found == nullptr) found = &named;
  }
  return found == nullptr ? "" : found->name;
}

}  // namespace pianola::auditing

#include <pianola/callable/input_holders.hpp>

#include <pianola/trace/references.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <algorithm>

namespace pianola::callable {

InputHolders::InputHolders(std::span<const at::Tensor> inputs) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (trace::storage_of(inputs[i]) == nullptr) continue;
    inputs_.push_back({.tensor = trace::WeakTensor(inputs[i].getIntrusivePtr()),
                       .memory = inputs[i].storage().getWeakStorageImpl(),
                       .position = i,
                       .to_tensor = trace::references_in_cpp(inputs[i]),
                       .to_memory = trace::references_to(inputs[i].storage())});
  }
}

void InputHolders::leave_out(const std::function<bool(const c10::StorageImpl*)>& is_known) {
  std::erase_if(inputs_, [&](const Input& input) { return is_known(input.memory._unsafe_get_target()); });
}

void InputHolders::go_on_from(const InputHolders& before) {
  for (Input& input : inputs_) {
    for (const Input& earlier : before.inputs_) {
      if (earlier.tensor._unsafe_get_target() != input.tensor._unsafe_get_target() || !earlier.is_kept()) continue;
      input.to_tensor = std::min(input.to_tensor, earlier.to_tensor);
      input.to_memory = std::min(input.to_memory, earlier.to_memory);
    }
  }
}

std::optional<std::size_t> InputHolders::kept() const {
  const auto found = std::find_if(inputs_.begin(), inputs_.end(), [](const Input& input) { return input.is_kept(); });
  return found == inputs_.end() ? std::nullopt : std::optional(found->position);
}

// Who asks holds one more reference while it does.
bool InputHolders::Input::is_kept() const {
  const at::Tensor input(tensor.lock());
  if (!input.defined()) return false;
  return trace::references_in_cpp(input) > to_tensor + 1 || trace::references_to(input.storage()) > to_memory;
}

}  // namespace pianola::callable

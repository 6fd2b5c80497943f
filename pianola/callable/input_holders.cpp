#include <pianola/callable/input_holders.hpp>

#include <pianola/trace/references.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace pianola::callable {
namespace {

// Without that of the node that accumulates a leaf's gradient. The node lives as long as any history leads to the leaf, also the history
// of a tensor that the function may keep, or of a cast that autocast keeps: neither keeps the input for its values.
std::size_t references_to_tensor(const at::Tensor& input) {
  const bool has_accumulator = torch::autograd::impl::try_get_grad_accumulator(input) != nullptr;
  return trace::references_in_cpp(input) - (has_accumulator ? 1 : 0);
}

}  // namespace

InputHolders::InputHolders(std::span<const at::Tensor> inputs) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (trace::storage_of(inputs[i]) == nullptr) continue;
    inputs_.push_back({.tensor = trace::WeakTensor(inputs[i].getIntrusivePtr()),
                       .memory = inputs[i].storage().getWeakStorageImpl(),
                       .position = i,
                       .to_tensor = references_to_tensor(inputs[i]),
                       .to_memory = trace::references_to(inputs[i].storage())});
  }
}

void InputHolders::leave_out(const std::function<bool(const c10::StorageImpl*)>& is_known) {
  std::erase_if(inputs_, [&](const Input& input) { return is_known(input.memory._unsafe_get_target()); });
}

std::vector<std::size_t> InputHolders::positions() const {
  std::vector<std::size_t> result;
  for (const Input& input : inputs_) result.push_back(input.position);
  return result;
}

void InputHolders::keep_to(const std::vector<std::size_t>& positions) {
  std::erase_if(inputs_, [&](const Input& input) {
    return std::find(positions.begin(), positions.end(), input.position) == positions.end();
  });
}

void InputHolders::expect_references(std::size_t count) {
  for (Input& input : inputs_) input.to_tensor = count;
}

void InputHolders::go_on_from(const InputHolders& before) {
  for (Input& input : inputs_) {
    for (const Input& earlier : before.inputs_) {
      if (earlier.tensor._unsafe_get_target() != input.tensor._unsafe_get_target() || !before.is_kept(earlier))
        continue;
      input.to_tensor = std::min(input.to_tensor, earlier.to_tensor);
      input.to_memory = std::min(input.to_memory, earlier.to_memory);
    }
  }
}

void InputHolders::forget_free() {
  std::erase_if(inputs_, [&](const Input& input) { return !is_kept(input); });
}

std::optional<std::size_t> InputHolders::kept() const {
  const auto found = std::find_if(inputs_.begin(), inputs_.end(), [&](const Input& input) { return is_kept(input); });
  return found == inputs_.end() ? std::nullopt : std::optional(found->position);
}

std::optional<std::size_t> InputHolders::kept_for_long() const {
  constexpr std::chrono::milliseconds kPatience(50);
  const auto end = std::chrono::steady_clock::now() + kPatience;
  std::optional<std::size_t> input = kept();
  while (input && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    input = kept();
  }
  return input;
}

// Who asks holds one more reference while it does.
bool InputHolders::is_kept(const Input& one) const {
  const at::Tensor input(one.tensor.lock());
  if (!input.defined()) return false;
  return references_to_tensor(input) > one.to_tensor + 1 ||
         trace::references_to(input.storage()) > one.to_memory + history_.references_to(input.storage());
}

}  // namespace pianola::callable

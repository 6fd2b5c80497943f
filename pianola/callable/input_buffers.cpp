#include <pianola/callable/input_buffers.hpp>

#include <pianola/graph/copy_into.hpp>
#include <pianola/memory/block.hpp>
#include <pianola/trace/parts.hpp>
#include <pianola/trace/quiet_scope.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <unordered_set>

namespace pianola::callable {
namespace {

InputSize size_of_input(const at::Tensor& input) {
  InputSize size{.device = input.device(), .dtype = input.scalar_type()};
  const bool fits = trace::storage_of(input) != nullptr && input.layout() == at::kStrided &&
                    input.is_non_overlapping_and_dense() && trace::bytes_are_values(input);
  if (fits) size.bytes = input.nbytes();
  return size;
}

at::Tensor at_start_of(const c10::Storage& buffer, const at::Tensor& sample) {
  const trace::QuietScope quiet;
  at::Tensor tensor = at::empty({0}, sample.options().requires_grad(false));
  tensor.set_(buffer, 0, sample.sizes(), sample.strides());
  return tensor;
}

}  // namespace

std::vector<InputSize> sizes_of_inputs(std::span<const at::Tensor> inputs) {
  std::vector<InputSize> sizes;
  sizes.reserve(inputs.size());
  for (const at::Tensor& input : inputs) sizes.push_back(size_of_input(input));
  return sizes;
}

void InputBuffers::Expectation::add(std::span<const InputSize> inputs) {
  for (std::size_t position = 0; position < inputs.size(); ++position) {
    std::uint64_t& most = buffers_.expected_[key_of(position, inputs[position])];
    most = std::max(most, inputs[position].bytes);
  }
}

at::Tensor InputBuffers::static_copy_of(std::size_t position, const at::Tensor& sample) {
  const InputSize size = size_of_input(sample);
  if (size.bytes == 0) return graph::static_copy_of(sample);
  at::Tensor copy = at_start_of(buffer_for(key_of(position, size), size), sample);
  graph::copy_into({&copy, 1}, {&sample, 1});
  return copy;
}

c10::Storage InputBuffers::buffer_for(const Key& key, const InputSize& size) {
  const auto known = buffers_.find(key);
  if (known != buffers_.end()) {
    c10::Storage buffer(known->second.lock());
    if (buffer && buffer.nbytes() >= size.bytes) return buffer;
    buffers_.erase(known);
  }
  const auto expected = expected_.find(key);
  const std::uint64_t most = expected == expected_.end() ? size.bytes : std::max(expected->second, size.bytes);
  const trace::QuietScope quiet;
  const at::Tensor made = at::empty({static_cast<std::int64_t>(memory::in_whole_units(most))},
                                    at::TensorOptions().dtype(at::kByte).device(size.device));
  buffers_.emplace(key, made.storage().getWeakStorageImpl());
  return made.storage();
}

bool hold_gradients(std::span<const at::Tensor> inputs, std::span<const at::Tensor> leaves) {
  std::unordered_set<const c10::StorageImpl*> memory;
  for (const at::Tensor& input : inputs) memory.insert(trace::storage_of(input));
  memory.erase(nullptr);
  return std::any_of(leaves.begin(), leaves.end(), [&](const at::Tensor& leaf) {
    bool is_held = false;
    trace::for_each_part(leaf.grad(),
                         [&](const at::Tensor& part) { is_held |= memory.count(trace::storage_of(part)) != 0; });
    return is_held;
  });
}

std::size_t bytes_of_memory(std::span<const at::Tensor> tensors) {
  std::unordered_set<const c10::StorageImpl*> seen;
  std::size_t bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    if (trace::storage_of(tensor) != nullptr && seen.insert(trace::storage_of(tensor)).second) {
      bytes += tensor.storage().nbytes();
    }
  }
  return bytes;
}

}  // namespace pianola::callable

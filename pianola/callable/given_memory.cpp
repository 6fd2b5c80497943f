#include <pianola/callable/given_memory.hpp>

#include <pianola/trace/call_site.hpp>
#include <pianola/trace/describe.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string>

namespace pianola::callable {
namespace {

// "the memory of input 0"; empty where it is none of the run's.
std::string memory_in_words(const at::Tensor& tensor, const RunWithMemory& run) {
  const c10::StorageImpl* const memory = trace::storage_of(tensor);
  if (memory == nullptr) return "";
  for (std::size_t i = 0; i < run.inputs.size(); ++i) {
    if (trace::storage_of(run.inputs[i]) == memory) return fmt::format("the memory of input {}", i);
  }
  return run.made(memory) ? "memory that it made" : "";
}

std::string place_of_first_use(const at::Tensor& tensor, const RunWithMemory& run) {
  const auto& all = run.given.all();
  const auto found = std::find_if(all.begin(), all.end(), [&](const GivenTensors::One& one) {
    return one.tensor._unsafe_get_target() == tensor.unsafeGetTensorImpl();
  });
  if (found == all.end()) return "";
  const std::string place = run.log.site_of(found->operation).describe();
  return place.empty() ? "" : "the tensor is used first in " + place;
}

}  // namespace

void GivenTensors::on_op_begin(const trace::OpSpan& op) {
  for (const c10::IValue& value : op.inputs) {
    trace::for_each_tensor(value, [&](const at::Tensor& tensor) {
      if (!seen_.insert(tensor.unsafeGetTensorImpl()).second) return;
      all_.push_back({.tensor = trace::WeakTensor(tensor.getIntrusivePtr()), .operation = op.number});
    });
  }
}

std::optional<Diagnosis> refuse_given_memory(std::span<const EarlierTensor> before, const RunWithMemory& run) {
  for (const EarlierTensor& one : before) {
    const at::Tensor tensor(one.tensor.lock());
    if (!tensor.defined()) continue;
    const std::string memory = memory_in_words(tensor, run);
    if (memory.empty()) continue;
    const bool is_parameter = tensor.is_leaf() && tensor.requires_grad();
    return Diagnosis{
        .what = fmt::format("the function gives {}, which outlives the call, {} (tensor.data = ..., set_()); a replay "
                            "would give it nothing, and would overwrite what it has",
                            is_parameter ? trace::describe_parameter(tensor) : trace::describe(tensor), memory),
        .where = one.place.empty() ? place_of_first_use(tensor, run) : one.place,
        .fix = "write into the tensor in place of giving it other memory: tensor.copy_(new) under no_grad()",
        .rule = "PG802"};
  }
  return std::nullopt;
}

}  // namespace pianola::callable

#include <pianola/trace/host_read.hpp>

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>

#include <algorithm>

namespace pianola::trace {
namespace {

bool is_mask(const at::Tensor& index) {
  return index.defined() && (index.scalar_type() == at::kBool || index.scalar_type() == at::kByte);
}

// The indices are a Tensor?[]: a list that may hold None.
bool has_mask(const c10::IValue& indices) {
  if (!indices.isList()) return false;
  const c10::ArrayRef<c10::IValue> list = indices.toListRef();
  return std::any_of(list.begin(), list.end(),
                     [](const c10::IValue& entry) { return entry.isTensor() && is_mask(entry.toTensor()); });
}

}  // namespace

bool reads_on_host(const OpInfo& op, c10::ArrayRef<c10::IValue> inputs) {
  switch (op.host_read) {
    case HostRead::never:
      return false;
    case HostRead::always:
    case HostRead::dynamic_shape:
      return true;
    case HostRead::bool_index:
      return inputs.size() > 1 && has_mask(inputs[1]);
    case HostRead::repeats_tensor:
      return !inputs.empty() && inputs.back().isNone();
  }
  return false;
}

std::string why_host(HostRead kind) {
  switch (kind) {
    case HostRead::never:
      break;
    case HostRead::always:
      return "returns a value of a tensor to the host";
    case HostRead::dynamic_shape:
      return "gives its result a shape that depends on values, which the host has to read";
    case HostRead::bool_index:
      return "indexes with a mask, whose count of true values the host has to read";
    case HostRead::repeats_tensor:
      return "repeats by counts that the host has to read";
  }
  return "needs no value on the host";
}

}  // namespace pianola::trace

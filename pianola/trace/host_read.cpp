#include <pianola/trace/host_read.hpp>

#include <pianola/trace/tensors_of.hpp>

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKey.h>

#include <algorithm>
#include <cstddef>

namespace pianola::trace {
namespace {

bool is_mask(const at::Tensor& index) {
  return index.defined() && (index.scalar_type() == at::kBool || index.scalar_type() == at::kByte);
}

// The indices are a Tensor?[]: a list that may hold None.
std::size_t count_indices(const c10::IValue& indices, bool (*wanted)(const at::Tensor&)) {
  if (!indices.isList()) return 0;
  const c10::ArrayRef<c10::IValue> list = indices.toListRef();
  return static_cast<std::size_t>(std::count_if(list.begin(), list.end(), [&](const c10::IValue& entry) {
    return entry.isTensor() && wanted(entry.toTensor());
  }));
}

bool has_mask(c10::ArrayRef<c10::IValue> inputs) { return inputs.size() > 1 && count_indices(inputs[1], is_mask) > 0; }

// index_put_(self, indices, values, accumulate): one mask and one number of the host's become masked_fill_, which asks
// nobody how many values are true (canDispatchToMaskedFill in torch's TensorAdvancedIndexing.cpp).
bool fills(c10::ArrayRef<c10::IValue> inputs) {
  const auto is_index = [](const at::Tensor& index) { return index.defined(); };
  if (inputs.size() < 4 || inputs[3].toBool() || count_indices(inputs[1], is_index) != 1) return false;
  const at::Tensor& values = inputs[2].toTensor();
  return values.numel() == 1 && values.device().is_cpu();
}

bool is_plain_on(const at::Tensor& tensor, c10::DeviceType device) {
  return tensor.defined() && tensor.device().type() == device && tensor.layout() == at::kStrided &&
         tensor.has_storage() && bytes_are_values(tensor) && !tensor.key_set().has(c10::DispatchKey::Python);
}

bool is_the_same_view(const at::Tensor& one, const at::Tensor& other) {
  return one.is_alias_of(other) && one.storage_offset() == other.storage_offset() &&
         one.scalar_type() == other.scalar_type() && one.strides().equals(other.strides());
}

// equal(self, other) asks for no values where shapes differ, and of a tensor and itself (cuda_equal in torch's Equal.cpp):
// torch::nn::MultiheadAttention compares query, key and value so. Of one that is still to be conjugated or negated torch makes two new
// tensors before it compares them. On the CPU it looks for NaNs then, and the tape compares the answers.
bool is_answered_without_values(const OpInfo& op, c10::ArrayRef<c10::IValue> inputs) {
  if (op.name != "aten::equal") return false;
  const at::Tensor &one = inputs[0].toTensor(), &other = inputs[1].toTensor();
  const auto both_on = [&](c10::DeviceType device) { return is_plain_on(one, device) && is_plain_on(other, device); };
  if (!both_on(c10::kCPU) && !both_on(c10::kCUDA)) return false;
  return one.sizes() != other.sizes() || one.numel() == 0 || is_the_same_view(one, other);
}

}  // namespace

bool reads_on_host(const OpInfo& op, c10::ArrayRef<c10::IValue> inputs) {
  switch (op.host_read) {
    case HostRead::never:
      return false;
    case HostRead::always:
      return !is_answered_without_values(op, inputs);
    case HostRead::dynamic_shape:
      return true;
    case HostRead::bool_index:
      return has_mask(inputs);
    case HostRead::bool_index_put:
      return has_mask(inputs) && !fills(inputs);
    case HostRead::repeats_tensor:
      return inputs.size() > 1 && inputs[1].isNone();  // (repeats, output_size)
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
      return "returns a result whose shape depends on values that the host must read";
    case HostRead::bool_index:
    case HostRead::bool_index_put:
      return "indexes with a mask whose true values the host must count";
    case HostRead::repeats_tensor:
      return "repeats by counts that the host must read";
  }
  return "needs no value on the host";
}

}  // namespace pianola::trace

#include <pianola/trace/host_copy.hpp>

#include <pianola/trace/quiet_scope.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace pianola::trace {
namespace {

bool is_pageable(const c10::IValue& value) {
  if (!value.isTensor()) return false;
  const at::Tensor& tensor = value.toTensor();
  return tensor.defined() && tensor.is_cpu() && tensor.layout() == at::kStrided && tensor.has_storage() &&
         tensor.numel() != 0 && !tensor.unsafeGetTensorImpl()->is_wrapped_number() &&
         !at::globalContext().isPinnedPtr(address_of(tensor), at::kCUDA);
}

bool names_a_gpu(c10::ArrayRef<c10::IValue> inputs) {
  for (const c10::IValue& value : inputs) {
    if (value.isDevice() && value.toDevice().is_cuda()) return true;
  }
  return false;
}

}  // namespace

const at::Tensor* copied_from_host(const OpInfo& op, c10::ArrayRef<c10::IValue> inputs) {
  if (op.name == "aten::_to_copy") {
    return names_a_gpu(inputs) && is_pageable(inputs[0]) ? &inputs[0].toTensor() : nullptr;
  }
  if (op.name == "aten::copy_") {
    return inputs[0].isTensor() && inputs[0].toTensor().is_cuda() && is_pageable(inputs[1]) ? &inputs[1].toTensor()
                                                                                            : nullptr;
  }
  return nullptr;
}

bool is_index_of_host(const c10::IValue& index) {
  if (!is_pageable(index)) return false;
  const at::ScalarType type = index.toTensor().scalar_type();
  return type == at::kLong || type == at::kInt;
}

std::vector<at::Tensor> indices_of_host(const OpInfo& op, c10::ArrayRef<c10::IValue> inputs) {
  static const std::array<std::string_view, 6> kIndexing = {
      "aten::index",      "aten::_unsafe_index",    "aten::index_put",
      "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index_put"};
  if (inputs.size() < 2 || !inputs[0].isTensor() || !inputs[0].toTensor().is_cuda() || !inputs[1].isList()) return {};
  const std::string& name = op.schema().name();
  if (std::find(kIndexing.begin(), kIndexing.end(), name) == kIndexing.end()) return {};
  std::vector<at::Tensor> found;
  for (const c10::IValue& entry : inputs[1].toListRef()) {
    if (is_index_of_host(entry)) found.push_back(entry.toTensor());
  }
  return found;
}

bool takes_from_host(const OpInfo& op, c10::ArrayRef<c10::IValue> inputs, const at::Tensor& tensor) {
  if (!tensor.is_cpu()) return false;
  if (const at::Tensor* const copied = copied_from_host(op, inputs)) return copied->is_same(tensor);
  const std::vector<at::Tensor> indices = indices_of_host(op, inputs);
  return std::any_of(indices.begin(), indices.end(), [&](const at::Tensor& one) { return one.is_same(tensor); });
}

std::optional<CallInstead> number_given(const OpInfo& op, c10::ArrayRef<c10::IValue> inputs) {
  const at::Tensor* const source = copied_from_host(op, inputs);
  if (source == nullptr || source->dim() != 0 || source->requires_grad()) return std::nullopt;
  static const OpInfo* const full = &info_of(c10::Dispatcher::singleton().findSchemaOrThrow("aten::full", ""));
  static const OpInfo* const fill = &info_of(c10::Dispatcher::singleton().findSchemaOrThrow("aten::fill_", "Scalar"));
  const bool into = op.name == "aten::copy_";
  if (into && inputs[0].toTensor().requires_grad() && c10::GradMode::is_enabled()) return std::nullopt;
  at::ScalarType type = into ? inputs[0].toTensor().scalar_type() : source->scalar_type();
  c10::IValue device;
  const auto& arguments = op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() == "dtype" && !inputs[i].isNone()) type = inputs[i].toScalarType();
    if (arguments[i].name() == "device") device = inputs[i];
  }
  if (type != source->scalar_type() && !c10::isIntegralType(source->scalar_type(), /*includeBool=*/true)) {
    return std::nullopt;
  }
  const QuietScope quiet;
  const c10::Scalar number = source->item();
  if (into) return CallInstead{.op = fill, .inputs = {inputs[0], number}};
  return CallInstead{.op = full,
                     .inputs = {std::vector<std::int64_t>(), number, type, c10::IValue(), device, c10::IValue()}};
}

std::int64_t hash_of_values(const at::Tensor& tensor) {
  const QuietScope quiet;
  const at::Tensor dense = tensor.detach().contiguous();
  const std::string_view bytes(static_cast<const char*>(dense.const_data_ptr()), dense.nbytes());
  return static_cast<std::int64_t>(std::hash<std::string_view>()(bytes));
}

}  // namespace pianola::trace

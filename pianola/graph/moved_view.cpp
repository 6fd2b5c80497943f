#include <pianola/graph/moved_view.hpp>

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>

namespace pianola::graph {
namespace {

const trace::OpInfo& operator_of(const char* name, const char* overload) {
  return trace::info_of(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload));
}

// A dense tensor that no subclass answers for.
bool is_plain(const at::Tensor& tensor) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  return tensor.defined() && tensor.layout() == at::kStrided && !impl->key_set().has(c10::DispatchKey::Python) &&
         !impl->key_set().has_any(
             c10::DispatchKeySet({c10::DispatchKey::Functionalize, c10::DispatchKey::FuncTorchBatched})) &&
         !impl->has_symbolic_sizes_strides();
}

}  // namespace

std::optional<std::int64_t> offset_of_view(const trace::OpInfo& op, c10::ArrayRef<c10::IValue> inputs,
                                           const at::Tensor& like) {
  static const trace::OpInfo& select = operator_of("aten::select", "int");
  static const trace::OpInfo& slice = operator_of("aten::slice", "Tensor");
  const bool is_select = &op == &select;
  if ((!is_select && &op != &slice) || !inputs[0].isTensor() || !inputs[1].isInt() || !inputs[2].isInt()) {
    return std::nullopt;
  }
  const at::Tensor& tensor = inputs[0].toTensor();
  if (!is_plain(tensor)) return std::nullopt;
  const std::int64_t dim = inputs[1].toInt() < 0 ? inputs[1].toInt() + tensor.dim() : inputs[1].toInt();
  if (dim < 0 || dim >= tensor.dim()) return std::nullopt;
  const std::int64_t size = tensor.size(dim), number = inputs[2].toInt();
  std::int64_t begin = number < 0 ? number + size : number;
  if (is_select) {
    if (begin < 0 || begin >= size) return std::nullopt;  // it throws
  } else {
    const bool are_ints = (inputs[3].isInt() || inputs[3].isNone()) && inputs[4].isInt();
    if (!are_ints || inputs[4].toInt() != 1 || like.dim() != tensor.dim()) return std::nullopt;
    std::int64_t end = inputs[3].isInt() ? inputs[3].toInt() : size;
    begin = std::clamp<std::int64_t>(begin, 0, size);
    end = std::clamp<std::int64_t>(end < 0 ? end + size : end, begin, size);
    if (end - begin != like.size(dim)) return std::nullopt;
  }
  return tensor.storage_offset() + begin * tensor.stride(dim);
}

}  // namespace pianola::graph

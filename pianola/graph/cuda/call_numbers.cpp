#include <pianola/graph/cuda/call_numbers.hpp>

#include <pianola/trace/quiet_scope.hpp>
#include <pianola/trace/wrapped_number.hpp>

#include <ATen/core/List.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/Scalar.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <complex>
#include <cstdint>
#include <variant>

namespace pianola::graph {
namespace {

Numeral as_numeral(const trace::WrappedNumber& number) {
  if (const auto* real = std::get_if<double>(&number)) return Numeral::of(*real);
  if (const auto* integer = std::get_if<std::int64_t>(&number)) return Numeral::of(*integer);
  if (const auto* truth = std::get_if<bool>(&number)) {
    return {.value = *truth ? 1.0 : 0.0, .kind = Numeral::Kind::boolean, .bits = *truth ? 1 : 0};
  }
  static std::atomic<std::int64_t> complex_ones{0};  // each is another one: none is followed
  return {.value = 0, .kind = Numeral::Kind::none, .bits = ++complex_ones};
}

Numeral numeral_of(const c10::IValue& value) {
  if (value.isDouble()) return Numeral::of(value.toDouble());
  if (value.isInt()) return Numeral::of(value.toInt());
  if (value.isBool()) return as_numeral(value.toBool());
  if (value.isTensor()) return as_numeral(trace::number_in(value.toTensor()));
  if (value.isNone()) return {};
  return as_numeral(std::complex<double>());
}

c10::IValue as_value(const c10::IValue& like, const Numeral& numeral) {
  const c10::Scalar scalar = numeral.kind == Numeral::Kind::integer
                                 ? c10::Scalar(static_cast<std::int64_t>(numeral.value))
                                 : c10::Scalar(numeral.value);
  if (!like.isTensor())
    return numeral.kind == Numeral::Kind::real || numeral.kind == Numeral::Kind::integer ? c10::IValue(scalar) : like;
  const at::Tensor& before = like.toTensor();
  const trace::QuietScope quiet;
  at::Tensor number = at::scalar_tensor(scalar, before.options().requires_grad(false));
  number.unsafeGetTensorImpl()->set_wrapped_number(before.unsafeGetTensorImpl()->is_wrapped_number());
  return number;
}

// Of an argument that is_numeral(): each, in order.
template <typename Function>
void for_each_numeral(const c10::IValue& value, const Function& function) {
  if (!value.isList()) {
    function(value);
  } else if (value.isDoubleList()) {
    for (const double number : value.toDoubleVector()) function(c10::IValue(number));
  } else {
    for (const c10::IValue& number : value.toListRef()) function(number);
  }
}

}  // namespace

bool has_kernels_for_any_number(const trace::OpInfo& op) {
  constexpr std::array kFills = {"aten::fill",  "aten::fill_",    "aten::full",         "aten::full_like",
                                 "aten::copy_", "aten::_to_copy", "aten::scalar_tensor"};
  const std::string& name = op.schema().name();
  return op.handle.hasTag(at::Tag::pointwise) || name.starts_with("aten::_foreach_") ||
         name.starts_with("aten::_fused_") || std::find(kFills.begin(), kFills.end(), name) != kFills.end();
}

bool is_numeral(const trace::OpInfo& op, std::size_t argument, const c10::IValue& value) {
  if (value.isTensor()) return value.toTensor().defined() && trace::is_number(value.toTensor());
  const c10::Type* type = op.schema().arguments()[argument].type().get();
  if (const auto* optional = type->castRaw<c10::OptionalType>()) type = optional->getElementType().get();
  if (const auto* list = type->castRaw<c10::ListType>()) type = list->getElementType().get();
  return type->kind() == c10::TypeKind::NumberType || type->kind() == c10::TypeKind::FloatType;
}

void numerals_of(const trace::OpInfo& op, const torch::jit::Stack& inputs, std::vector<Numeral>& numerals) {
  numerals.clear();
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!is_numeral(op, i, inputs[i])) continue;
    for_each_numeral(inputs[i], [&](const c10::IValue& value) { numerals.push_back(numeral_of(value)); });
  }
}

torch::jit::Stack with_numerals(const trace::OpInfo& op, const torch::jit::Stack& inputs,
                                std::span<const Numeral> numerals) {
  torch::jit::Stack others = inputs;
  std::size_t next = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!is_numeral(op, i, inputs[i])) continue;
    if (!inputs[i].isList()) {
      others[i] = as_value(inputs[i], numerals[next++]);
      continue;
    }
    // A list of its own: the other one is shared.
    if (inputs[i].isDoubleList()) {
      c10::List<double> reals;
      for (std::size_t count = inputs[i].toDoubleList().size(); count > 0; --count)
        reals.push_back(numerals[next++].value);
      others[i] = std::move(reals);
    } else {
      c10::impl::GenericList list(inputs[i].toList().elementType());
      for (const c10::IValue& like : inputs[i].toListRef()) list.push_back(as_value(like, numerals[next++]));
      others[i] = std::move(list);
    }
  }
  return others;
}

}  // namespace pianola::graph

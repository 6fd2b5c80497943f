#pragma once
#include <pianola/core/export.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <complex>
#include <cstdint>
#include <optional>
#include <variant>

namespace pianola::trace {

using WrappedNumber = std::variant<bool, std::int64_t, double, std::complex<double>>;

/// The number 0.5 of `x * 0.5`, which reaches the operator as a CPU tensor that was made for it. It is read directly, not
/// by an operation. Nothing where the value is another tensor, one without memory (a FakeTensor), or no tensor at all.
[[nodiscard]] PIANOLA_API std::optional<WrappedNumber> wrapped_number(const c10::IValue& value);

/// Whether number_in() can read it: a dense tensor of the CPU without dimensions.
[[nodiscard]] bool is_number(const at::Tensor& tensor);
/// Its value, read directly. Only where is_number().
[[nodiscard]] WrappedNumber number_in(const at::Tensor& tensor);

}  // namespace pianola::trace

#pragma once
#include <pianola/cuda/number_words.hpp>
#include <pianola/trace/op_info.hpp>

#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <cstddef>
#include <span>
#include <vector>

namespace pianola::graph {

/// Whether the operation launches the same kernels whatever an ordinary number's value is (Note [Words that follow numbers]):
/// it works element by element.
[[nodiscard]] bool has_kernels_for_any_number(const trace::OpInfo& op);

/// Whether the argument is a number, or a list of them, that its kernels compute with, and not a size or a dimension.
[[nodiscard]] bool is_numeral(const trace::OpInfo& op, std::size_t argument, const c10::IValue& value);

/// All numbers of a call that is_numeral(), in their order.
void numerals_of(const trace::OpInfo& op, const torch::jit::Stack& inputs, std::vector<Numeral>& numerals);

/// The same arguments with other numbers. @param numerals  As many, of the same kinds.
[[nodiscard]] torch::jit::Stack with_numerals(const trace::OpInfo& op, const torch::jit::Stack& inputs,
                                              std::span<const Numeral> numerals);

}  // namespace pianola::graph

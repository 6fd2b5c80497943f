#pragma once
#include <pianola/trace/plain_check.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <string>
#include <string_view>

namespace pianola::trace {

/// Why an operation is not for observers; see Note [What is plain].
struct OddOperation {
  Oddity oddity = Oddity::none;
  at::Tensor tensor = {};  ///< That is not plain, where a tensor is the cause.
};

/// Of results: the first tensor that is not what it seems.
[[nodiscard]] OddOperation odd_tensor_in(c10::ArrayRef<c10::IValue> values);
/// Of a call with these inputs, made now by this thread: its modes, or else the first such tensor.
[[nodiscard]] OddOperation oddity_of_call(c10::ArrayRef<c10::IValue> inputs);

/// "aten::mm is given a DTensor, which runs Python for each operation". @param verb  "is given", "makes".
[[nodiscard]] std::string in_words(const OddOperation& odd, std::string_view op, std::string_view verb);
/// Of an operator that communicates; of one that other ranks have not called yet; of a span that is no operator.
[[nodiscard]] std::string collective_in_words(Oddity oddity, std::string_view op);
[[nodiscard]] std::string late_rank_in_words(std::string_view op);
[[nodiscard]] std::string span_in_words(Oddity oddity, std::string_view name);

}  // namespace pianola::trace

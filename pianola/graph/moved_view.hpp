#pragma once
#include <pianola/trace/op_info.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <optional>

namespace pianola::graph {

/// Where the result of a call that looks at memory by a number begins, as torch's storage_offset(): x[i], x[i:j]. Found without
/// the call, which takes a microsecond.
/// @param like  The result of such a call, which this one's has the shape of.
/// @return      Nothing where only the call itself tells: another operator, a number that it refuses, another shape.
[[nodiscard]] std::optional<std::int64_t> offset_of_view(const trace::OpInfo& op, c10::ArrayRef<c10::IValue> inputs,
                                                         const at::Tensor& like);

}  // namespace pianola::graph

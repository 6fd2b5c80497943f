#pragma once
#include <pianola/trace/op_info.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <algorithm>
#include <cstddef>

namespace pianola::trace {

/// Calls `visit(tensor, written)` for each defined tensor among the arguments of a call, in their order; those in lists, too.
/// `written`: the call writes into it, be it that its schema says so or that it is a running statistic of a norm in training.
template <typename Visit>
void for_each_argument(const OpInfo& info, c10::ArrayRef<c10::IValue> inputs, const Visit& visit) {
  const bool statistics = info.writes_statistics(inputs);
  for (std::size_t i = 0; i < std::min(inputs.size(), info.writes.size()); ++i) {
    const bool written = info.writes[i] || (statistics && info.running_statistic[i]);
    for_each_tensor(inputs[i], [&](const at::Tensor& tensor) { visit(tensor, written); });
  }
}

}  // namespace pianola::trace

#pragma once
#include <pianola/trace/op_info.hpp>
#include <pianola/trace/resized_storage.hpp>

namespace pianola::trace {

/// Whether an operation reads or writes the values of its tensors. One that only describes memory anew, or allocates as much,
/// does not. zero_grad() detaches the gradients that it drops, torch.tensor() what it makes. One that resizes a storage moves values.
[[nodiscard]] inline bool uses_values(const OpInfo& op) {
  return !op.is_view && !op.is_empty && op.name != "aten::detach_" && op.name != kResizesStorage;
}

}  // namespace pianola::trace

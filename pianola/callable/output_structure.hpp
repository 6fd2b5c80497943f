#pragma once
#include <pianola/callable/structure.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <optional>
#include <vector>

namespace pianola::callable {

/// The structure of a function's result, which the first run under capture finds out.
class OutputStructure {
 public:
  /// The tensors of the result of one run. @throws UsageError  Its structure is not that of the run before.
  [[nodiscard]] std::vector<at::Tensor> flatten(const c10::IValue& result);
  /// What flatten() took apart, around other tensors.
  [[nodiscard]] c10::IValue rebuild(const std::vector<at::Tensor>& leaves) const { return structure_->rebuild(leaves); }

 private:
  std::optional<Structure> structure_;
};

/// The tensors in a function's result.
[[nodiscard]] std::vector<at::Tensor> leaves_of(const c10::IValue& result);

}  // namespace pianola::callable

#include <pianola/callable/output_structure.hpp>

#include <pianola/core/error.hpp>

#include <fmt/format.h>

namespace pianola::callable {

std::vector<at::Tensor> OutputStructure::flatten(const c10::IValue& result) {
  if (!structure_) structure_.emplace(result, "output");
  std::vector<at::Tensor> leaves;
  if (auto difference = structure_->flatten(result, leaves)) {
    throw UsageError({.what = fmt::format("the function returned another structure in another run: {}", *difference),
                      .fix = "return the same structure from each call; only tensors may vary",
                      .rule = "PG505"});
  }
  return leaves;
}

std::vector<at::Tensor> leaves_of(const c10::IValue& result) { return OutputStructure().flatten(result); }

}  // namespace pianola::callable

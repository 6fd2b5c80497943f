#include <pianola/callable/result_copies.hpp>

#include <pianola/trace/quiet_scope.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>

#include <utility>

namespace pianola::callable {
namespace {

at::Tensor memory_for_copy(const at::Tensor& result) {
  if (result.layout() != at::kStrided || result.is_quantized() || !trace::bytes_are_values(result)) return {};
  return result.is_non_overlapping_and_dense() ? at::empty_strided(result.sizes(), result.strides(), result.options())
                                               : at::empty_like(result);
}

}  // namespace

ResultCopies::ResultCopies(std::span<const at::Tensor> results) {
  const trace::QuietScope quiet;
  memory_.reserve(results.size());
  for (const at::Tensor& result : results) memory_.push_back(memory_for_copy(result));
}

at::Tensor ResultCopies::copy(const at::Tensor& result) {
  const trace::QuietScope quiet;
  at::Tensor copy = std::move(memory_.at(next_++));
  if (!copy.defined()) return result.clone();
  const at::AutoDispatchBelowADInplaceOrView below_autograd;  // nobody has written to it
  return copy.copy_(result);
}

}  // namespace pianola::callable

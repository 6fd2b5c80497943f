#include <pianola/callable/copy_into.hpp>

#include <pianola/trace/quiet_scope.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <ATen/ops/_foreach_copy.h>

#if PIANOLA_WITH_CUDA
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#endif

#include <cstddef>
#include <cstring>
#include <vector>

namespace pianola::callable {
namespace {

// One kernel copies any number of tensors; it beats single copies from here on (its arguments cost host time).
constexpr std::size_t kFewCopies = 3;

bool is_plain_copy(const at::Tensor& to, const at::Tensor& from) {
  return to.strides() == from.strides() && to.is_non_overlapping_and_dense() && from.device() == to.device() &&
         from.scalar_type() == to.scalar_type() && !from.is_conj() && !from.is_neg();
}

// The copy itself, without a way through the dispatcher: a call's few inputs are the largest part of its host time.
void copy_bytes(const at::Tensor& to, const at::Tensor& from) {
  void* const target = const_cast<std::byte*>(trace::address_of(to));
  const void* const source = trace::address_of(from);
#if PIANOLA_WITH_CUDA
  if (to.is_cuda()) {
    const c10::cuda::OptionalCUDAGuard on_device(to.device());
    C10_CUDA_CHECK(cudaMemcpyAsync(target, source, to.nbytes(), cudaMemcpyDeviceToDevice,
                                   c10::cuda::getCurrentCUDAStream(to.device().index()).stream()));
    return;
  }
#endif
  std::memcpy(target, source, to.nbytes());
}

}  // namespace

void copy_into(std::span<const at::Tensor> fixed, std::span<const at::Tensor> given) {
  std::size_t copies = 0;
  bool plain = true;
  for (std::size_t i = 0; i < fixed.size(); ++i) {
    if (!given[i].defined()) {
      const trace::QuietScope quiet;
      fixed[i].zero_();
      continue;
    }
    if (fixed[i].numel() == 0 || trace::address_of(fixed[i]) == trace::address_of(given[i])) continue;
    ++copies;
    plain = plain && is_plain_copy(fixed[i], given[i]);
  }
  if (copies == 0) return;
  std::vector<at::Tensor> to, from;
  const bool one_by_one = plain && copies <= kFewCopies;
  for (std::size_t i = 0; i < fixed.size(); ++i) {
    if (!given[i].defined() || fixed[i].numel() == 0) continue;
    if (trace::address_of(fixed[i]) == trace::address_of(given[i])) continue;
    if (one_by_one) {
      copy_bytes(fixed[i], given[i]);
    } else {
      to.push_back(fixed[i]);
      from.push_back(given[i]);
    }
  }
  if (one_by_one) return;
  const trace::QuietScope quiet;
  at::_foreach_copy_(to, from);
}

}  // namespace pianola::callable

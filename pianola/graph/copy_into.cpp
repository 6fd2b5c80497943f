#include <pianola/graph/copy_into.hpp>

#include <pianola/trace/quiet_scope.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <ATen/ops/empty_strided.h>

#if PIANOLA_WITH_CUDA
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#endif

#include <cstddef>
#include <cstring>
#include <vector>

namespace pianola::graph {
namespace {

// Dimensions along which `target` repeats one element shrink to that one.
at::Tensor without_repeats(at::Tensor tensor, const at::Tensor& target) {
  for (std::int64_t dim = 0; dim < target.dim(); ++dim) {
    if (target.stride(dim) == 0 && target.size(dim) > 1) tensor = tensor.narrow(dim, 0, 1);
  }
  return tensor;
}

// What copy_() comes to as well, without the dispatcher. False: it is for copy_().
bool copy_bytes(const at::Tensor& to, const at::Tensor& from) {
  if (!is_plain_copy(to, from)) return false;
  void* const target = const_cast<std::byte*>(trace::address_of(to));
  if (to.is_cpu()) {
    std::memcpy(target, trace::address_of(from), to.nbytes());
    return true;
  }
#if PIANOLA_WITH_CUDA
  if (to.is_cuda()) {
    const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(to.device().index());
    C10_CUDA_CHECK(
        cudaMemcpyAsync(target, trace::address_of(from), to.nbytes(), cudaMemcpyDeviceToDevice, stream.stream()));
    return true;
  }
#endif
  return false;
}

void copy_one(const at::Tensor& to, const at::Tensor& from) {
  if (to.numel() == 0 || (from.defined() && is_same_memory(to, from))) return;
  if (from.defined() && copy_bytes(to, from)) return;
  const trace::QuietScope quiet;
  from.defined() ? without_repeats(to, to).copy_(without_repeats(from, to)) : without_repeats(to, to).zero_();
}

}  // namespace

bool is_plain_copy(const at::Tensor& to, const at::Tensor& from) {
  return to.strides() == from.strides() && to.is_non_overlapping_and_dense() && from.device() == to.device() &&
         from.scalar_type() == to.scalar_type() && trace::bytes_are_values(from) && trace::bytes_are_values(to);
}

bool is_same_memory(const at::Tensor& to, const at::Tensor& from) {
  if (trace::address_of(to) != trace::address_of(from) || !trace::bytes_are_values(from) ||
      !trace::bytes_are_values(to)) {
    return false;
  }
  if (to.strides() == from.strides()) return true;
  for (std::int64_t dim = 0; dim < to.dim(); ++dim) {
    if (to.size(dim) > 1 && to.stride(dim) != from.stride(dim)) return false;
  }
  return true;
}

bool are_entangled(std::span<const at::Tensor> targets, std::span<const at::Tensor> sources) {
  for (std::size_t i = 0; i < sources.size(); ++i) {
    if (!sources[i].defined()) continue;
    for (std::size_t k = 0; k < targets.size(); ++k) {
      if (k == i && is_same_memory(targets[i], sources[i])) continue;
      if (trace::storage_of(sources[i]) == trace::storage_of(targets[k])) return true;
    }
  }
  return false;
}

void copy_into(std::span<const at::Tensor> targets, std::span<const at::Tensor> sources) {
  std::vector<at::Tensor> apart;
  if (are_entangled(targets, sources)) {
    const trace::QuietScope quiet;
    for (const at::Tensor& source : sources) apart.push_back(source.defined() ? source.clone() : source);
    sources = apart;
  }
  for (std::size_t i = 0; i < targets.size(); ++i) copy_one(targets[i], sources[i]);
}

at::Tensor static_copy_of(const at::Tensor& sample) {
  const trace::QuietScope quiet;
  at::Tensor copy = at::empty_strided(sample.sizes(), sample.strides(), sample.options().requires_grad(false));
  copy_into({&copy, 1}, {&sample, 1});
  return copy;
}

}  // namespace pianola::graph

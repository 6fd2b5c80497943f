#include <pianola/verify/copies.hpp>

#if PIANOLA_WITH_CUDA
#include <pianola/graph/cuda/free_memory.hpp>
#endif
#include <pianola/trace/quiet_scope.hpp>
#include <pianola/verify/bits.hpp>

#include <ATen/ops/clone.h>
#include <c10/util/Exception.h>

#include <algorithm>

namespace pianola::verification {
namespace {

#if PIANOLA_WITH_CUDA
using graph::free_memory;
#else
std::size_t free_memory(c10::DeviceIndex /*device*/) { return 0; }
#endif

bool alike(const at::Tensor& one, const at::Tensor& other) {
  return one.defined() && other.defined() && one.device() == other.device() && one.sizes() == other.sizes() &&
         one.scalar_type() == other.scalar_type() && one.layout() == other.layout();
}

}  // namespace

bool Copies::has_room(c10::Device device, std::size_t bytes) {
  if (!device.is_cuda()) return true;
  const std::size_t free = free_memory(device.index());
  const auto [entry, is_new] = left_alone_.insert({device.index(), free / 2});
  return bytes + entry->second <= free;
}

at::Tensor Copies::of(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  const trace::QuietScope quiet;
  const at::Tensor values = tensor.detach();
  if (!has_room(values.device(), static_cast<std::size_t>(values.numel()) * values.itemsize())) return values.cpu();
  try {
    return values.clone();
  } catch (const c10::OutOfMemoryError&) {
    if (values.is_cpu()) throw;
    return values.cpu();
  }
}

std::vector<at::Tensor> Copies::of(const std::vector<at::Tensor>& tensors, const std::vector<at::Tensor>& earlier) {
  BitCheck check;
  std::vector<std::size_t> checked;
  for (std::size_t i = 0; i < std::min(tensors.size(), earlier.size()); ++i) {
    if (!alike(tensors[i], earlier[i])) continue;
    check.add(tensors[i], earlier[i]);
    checked.push_back(i);
  }
  const std::vector<bool> equal = check.take();
  std::vector<at::Tensor> copies(tensors.size());
  for (std::size_t i = 0; i < checked.size(); ++i) {
    if (equal[i]) copies[checked[i]] = earlier[checked[i]];
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!copies[i].defined()) copies[i] = of(tensors[i]);
  }
  return copies;
}

}  // namespace pianola::verification

#include <pianola/graph/cuda/input_copies.hpp>

#include <pianola/graph/copy_into.hpp>
#include <pianola/trace/tensors_of.hpp>

#include <c10/cuda/CUDAException.h>
#include <c10/util/Exception.h>

#include <cuda_runtime_api.h>

#include <algorithm>
#include <utility>

namespace pianola::graph {
namespace {

void* writable(const at::Tensor& tensor) { return const_cast<std::byte*>(trace::address_of(tensor)); }

}  // namespace

// The source that is recorded only has to be memory of the device: the target itself will do.
void InputCopies::record(std::vector<at::Tensor> inputs, CUstream stream, const NewNodes& new_nodes) {
  targets_ = std::move(inputs);
  for (const at::Tensor& target : targets_) {
    Copy& copy = copies_.emplace_back();
    if (target.numel() == 0 || !target.is_non_overlapping_and_dense()) continue;
    void* const memory = writable(target);
    C10_CUDA_CHECK(cudaMemcpyAsync(memory, memory, target.nbytes(), cudaMemcpyDeviceToDevice, stream));
    const auto nodes = new_nodes();
    TORCH_INTERNAL_ASSERT(nodes.size() == 1, "a copy is one node");
    copy.node = nodes.front();
  }
}

void InputCopies::start(CUgraphExec executable) {
  know_by_own();
  start_over(executable);
}

void InputCopies::start_over(CUgraphExec executable) {
  for (Copy& copy : copies_) {
    copy.source = nullptr;  // what was recorded is no memory of anybody's by now
    copy.enabled = true;    // or not: it is disabled once more then
  }
  disable_all(executable);
}

// They are a chain at the begin of either graph, so that CUDA pairs them in their order.
void InputCopies::start_in_place_of(const InputCopies& earlier, CUgraphExec executable) {
  std::vector<CUgraphNode> in_executable;
  for (const Copy& copy : earlier.copies_) {
    if (copy.node != nullptr) in_executable.push_back(copy.in_executable);
  }
  know_by(in_executable);
  start_over(executable);
}

void InputCopies::start_shared(std::span<const CUgraphNode> in_executable) {
  know_by(in_executable);
  start_over(nullptr);
  is_settled_ = false;  // also where there are none to disable
}

void InputCopies::know_by(std::span<const CUgraphNode> in_executable) {
  auto next = in_executable.begin();
  for (Copy& copy : copies_) {
    if (copy.node == nullptr) continue;
    TORCH_INTERNAL_ASSERT(next != in_executable.end(), "an executable takes over as many copies as it has");
    copy.in_executable = *next++;
  }
}

// A source that the executable does not have is none: the next call sets it again.
void InputCopies::settle(CUgraphExec executable, CUstream stream) {
  is_settled_ = false;  // should it fail on the way
  try {
    for (std::size_t i = 0; i < copies_.size(); ++i) settle(executable, i, stream);
  } catch (...) {
    for (Copy& copy : copies_) copy.source = nullptr;
    throw;
  }
  is_settled_ = true;
}

void InputCopies::settle(CUgraphExec executable, std::size_t i, CUstream stream) {
  Copy& copy = copies_[i];
  if (copy.node == nullptr) return;
  if (copy.enabled && !set_source(executable, i, copy.source)) {
    const at::Tensor& target = targets_[i];
    C10_CUDA_CHECK(cudaMemcpyAsync(writable(target), copy.source, target.nbytes(), cudaMemcpyDeviceToDevice, stream));
    copy.enabled = false;
  }
  if (!copy.enabled) copy.source = nullptr;
  C10_CUDA_CHECK(cudaGraphNodeSetEnabled(executable, copy.in_executable, copy.enabled ? 1 : 0));
}

bool InputCopies::use_earlier_nodes() const noexcept {
  return std::any_of(copies_.begin(), copies_.end(), [](const Copy& copy) { return copy.in_executable != copy.node; });
}

void InputCopies::disable_all(CUgraphExec executable) {
  for (Copy& copy : copies_) {
    if (copy.node != nullptr) enable(executable, copy, false);
  }
}

void InputCopies::set_sources(CUgraphExec executable, std::span<const at::Tensor> sources,
                              c10::function_ref<void()> before_copying) {
  if (are_entangled(targets_, sources)) [[unlikely]] {
    disable_all(executable);
    before_copying();
    return copy_into(targets_, sources);
  }
  for (std::size_t i = 0; i < copies_.size(); ++i) {
    Copy& copy = copies_[i];
    const at::Tensor& target = targets_[i];
    const at::Tensor& source = sources[i];
    if (source.defined() && is_same_memory(target, source)) {
      if (copy.node != nullptr) enable(executable, copy, false);
    } else if (copy.node != nullptr && source.defined() && is_plain_copy(target, source)) [[likely]] {
      const void* const address = trace::address_of(source);
      if (address != copy.source && !set_source(executable, i, address)) [[unlikely]] {
        enable(executable, copy, false);
        before_copying();
        copy_into({&target, 1}, {&source, 1});
        continue;
      }
      enable(executable, copy, true);
    } else {
      if (copy.node != nullptr) enable(executable, copy, false);
      before_copying();
      copy_into({&target, 1}, {&source, 1});
    }
  }
}

void InputCopies::copy_now(CUgraphExec executable, std::span<const at::Tensor> sources) {
  disable_all(executable);
  copy_into(targets_, sources);
}

// false: CUDA does not take it in a node, as it does not take memory at mapped addresses (of a pool that may sleep, or of an expandable
// segment) in the place of what cudaMalloc gave.
bool InputCopies::set_source(CUgraphExec executable, std::size_t i, const void* source) {
  if (executable == nullptr) {
    copies_[i].source = source;
    is_settled_ = false;
    return true;
  }
  const cudaError_t status =
      cudaGraphExecMemcpyNodeSetParams1D(executable, copies_[i].in_executable, writable(targets_[i]), source,
                                         targets_[i].nbytes(), cudaMemcpyDeviceToDevice);
  if (status == cudaErrorInvalidValue) {
    (void)cudaGetLastError();
    return false;
  }
  C10_CUDA_CHECK(status);
  copies_[i].source = source;
  return true;
}

void InputCopies::enable(CUgraphExec executable, Copy& copy, bool enabled) {
  if (copy.enabled == enabled) [[likely]]
    return;
  if (executable == nullptr) {
    is_settled_ = false;
  } else {
    C10_CUDA_CHECK(cudaGraphNodeSetEnabled(executable, copy.in_executable, enabled ? 1 : 0));
  }
  copy.enabled = enabled;
}

std::vector<CUgraphNode> InputCopies::nodes() const {
  std::vector<CUgraphNode> nodes;
  for (const Copy& copy : copies_) {
    if (copy.node != nullptr) nodes.push_back(copy.node);
  }
  return nodes;
}

InputCopies InputCopies::in(const std::function<CUgraphNode(CUgraphNode)>& in_clone) const {
  InputCopies other = *this;
  for (Copy& copy : other.copies_) {
    if (copy.node != nullptr) copy.node = in_clone(copy.node);
  }
  return other;
}

}  // namespace pianola::graph

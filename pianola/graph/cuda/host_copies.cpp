#include <pianola/graph/cuda/host_copies.hpp>

#include <pianola/cuda/capture_mode.hpp>
#include <pianola/trace/host_copy.hpp>
#include <pianola/trace/quiet_scope.hpp>

#include <ATen/Functions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cstddef>
#include <optional>

namespace pianola::graph {
namespace {

// In the type and, where torch would have to make another temporary, in the shape that the copy wants.
at::Tensor pinned_copy(const at::Tensor& source, const at::Tensor* target, std::optional<at::ScalarType> dtype,
                       at::MemoryFormat format) {
  const trace::QuietScope quiet;
  // What torch allocates for a stream that is captured it never gives back.
  const c10::cuda::CUDAStreamGuard outside(c10::cuda::getDefaultCUDAStream());
  const RelaxedCaptureMode relaxed(Driver::get());  // new pinned memory may have to be asked for
  if (target != nullptr) {
    at::Tensor pinned = at::empty(target->sizes(), source.options().dtype(target->scalar_type()).pinned_memory(true));
    return pinned.copy_(source.detach());
  }
  at::Tensor pinned =
      at::empty_like(source, source.options().dtype(dtype.value_or(source.scalar_type())).pinned_memory(true), format);
  return pinned.copy_(source.detach());
}

}  // namespace

// Made once: no operation writes its indices.
void HostCopies::bring_indices(c10::IValue& indices, c10::Device device) {
  const trace::QuietScope quiet;
  const c10::cuda::CUDAStreamGuard outside(c10::cuda::getDefaultCUDAStream(device.index()));
  const RelaxedCaptureMode relaxed(Driver::get());
  c10::impl::GenericList brought = indices.toList().copy();
  for (std::size_t i = 0; i < brought.size(); ++i) {
    const c10::IValue index = brought.get(i);
    if (!trace::is_index_of_host(index)) continue;
    copies_.push_back(index.toTensor().detach().to(device));
    brought.set(i, copies_.back());
  }
  indices = std::move(brought);
}

void HostCopies::on_call(const trace::OpInfo& op, torch::jit::Stack& stack) {
  const auto& arguments = op.schema().arguments();
  const auto inputs = torch::jit::last(stack, arguments.size());
  if (!trace::indices_of_host(op, inputs).empty()) {
    const c10::Device device = inputs[0].toTensor().device();
    bring_indices(torch::jit::peek(stack, 1, arguments.size()), device);
    return trace::CallGate::run(op, stack);
  }
  const at::Tensor* const source = trace::copied_from_host(op, inputs);
  if (source == nullptr || source->requires_grad()) return trace::CallGate::run(op, stack);
  const bool into = op.name == "aten::copy_";
  std::optional<at::ScalarType> dtype;
  at::MemoryFormat format = at::MemoryFormat::Preserve;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (inputs[i].isNone()) continue;
    if (arguments[i].name() == "dtype") dtype = inputs[i].toScalarType();
    if (arguments[i].name() == "memory_format") format = inputs[i].toMemoryFormat();
  }
  copies_.push_back(pinned_copy(*source, into ? &inputs[0].toTensor() : nullptr, dtype, format));
  torch::jit::peek(stack, into ? 1 : 0, arguments.size()) = copies_.back();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() == "non_blocking") torch::jit::peek(stack, i, arguments.size()) = true;
  }
  trace::CallGate::run(op, stack);
}

}  // namespace pianola::graph

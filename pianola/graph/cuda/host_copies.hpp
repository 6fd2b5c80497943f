#pragma once
#include <pianola/trace/call_gate.hpp>
#include <pianola/trace/op_info.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <utility>
#include <vector>

namespace pianola::graph {

/// While it lives, copies that this thread makes from pageable memory of the host to a GPU are made from pinned copies of it, and
/// indices of the host are given to operations as copies on the GPU.
/// See Note [Copies from the host] in trace/host_copy.hpp.
class HostCopies {
 public:
  HostCopies() : gate_([this](const trace::OpInfo& op, torch::jit::Stack& stack) { on_call(op, stack); }) {}
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;
  ~HostCopies() = default;

  /// What a graph has to keep.
  [[nodiscard]] std::vector<at::Tensor> take() { return std::move(copies_); }

 private:
  void on_call(const trace::OpInfo& op, torch::jit::Stack& stack);
  void bring_indices(c10::IValue& indices, c10::Device device);

  std::vector<at::Tensor> copies_;
  trace::CallGate gate_;
};

}  // namespace pianola::graph

#pragma once
#include <pianola/callable/weight_split.hpp>
#include <pianola/graph/graph.hpp>
#include <pianola/torch_abi/autograd_node.hpp>
#include <pianola/trace/weak_tensor.hpp>

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/edge.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace pianola::callable {

/// One microbatch's forward and backward graphs, and the memory they share: a slot.
struct Pass {
  explicit Pass(c10::Device device) : forward(device), backward(device), weights(device) {}

  Graph forward;
  Graph backward;                           ///< Empty where nothing requires grad.
  Graph weights;                            ///< What the backward pass leaves for later; empty where that is nothing.
  std::vector<at::Tensor> inputs;           ///< Static; leaves that require grad where the sample did.
  std::vector<at::Tensor> outputs;          ///< Static; each once, also where it is returned twice.
  std::vector<at::Tensor> regions;          ///< Static; what several outputs are parts of.
  std::vector<at::Tensor> input_gradients;  ///< As CapturedMode::input_uses(); undefined where there is none.

  /// The number of the call whose forward ran here and whose backward can still come; 0: the slot is free.
  std::atomic<std::uint64_t> holder = 0;
  /// Rises from backward to backward of the process: the last one has left gradients of weights to compute; 0: none are.
  std::atomic<std::uint64_t> owes = 0;
  [[nodiscard]] bool in_flight() const noexcept { return holder != 0 || owes != 0; }
  torch_abi::WeakNodeRef node =
      torch_abi::no_node();  ///< The BackwardNode of the last call; guarded by the mode's lock.
  /// Version counters at the last forward: who writes these tensors before the backward that reads them is found out.
  std::vector<std::uint32_t> input_versions;
  std::vector<std::uint32_t> output_versions;
  /// What the last call returned, where it returned the static outputs themselves.
  std::vector<trace::WeakTensor> handed_out;

  /// With a schedule, of the call that owes them: ScheduleTurn::restarts() of its iteration.
  int microbatch = 0, iteration = 0;
  /// Weights that no gradient flows to in that call, as CapturedMode::Unreached.
  std::vector<std::size_t> unreached_direct, unreached_routed;
  std::vector<torch::autograd::Edge> routed_edges;  ///< Where the gradients of the latter go.
  std::vector<std::int64_t> weight_versions;        ///< Of CapturedMode::weights_read(), when the backward pass ran.

  /// During capture: the outputs with their history, from forward to backward, and what that leaves for later.
  std::vector<at::Tensor> history;
  std::unique_ptr<WeightSplit> split;
  std::uint64_t began = 0;  ///< at::sequence_number::peek() before the forward.
};

}  // namespace pianola::callable

#pragma once
#include <pianola/torch_abi/autograd_node.hpp>
#include <pianola/trace/op_stream.hpp>

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/flat_hash_map.h>

#include <memory>
#include <vector>

namespace pianola::graph {

// Note [Gradients on another stream]
// A leaf's AccumulateGrad node runs on the stream that was current when it was made, and lives as long as somebody has it:
// the graph of a loss that is still held, or DistributedDataParallel, whose hooks are on it. Used in a capture it would take
// the backward pass to that stream, and the default stream cannot be captured. So while a step warms up and is recorded, each
// leaf gets a new node, made on the capture stream; afterwards it has its old one back. A node with hooks cannot be replaced. But
// the stream is part of what a node says of its input: this is said anew under the capture stream, and put back afterwards.

/// Gives the leaves of a step AccumulateGrad nodes on the capture stream while it lives; not those of one that makes no gradients.
class LeafStreams final : public trace::OpObserver {
 public:
  /// @param differentiates  CaptureOptions::differentiates.
  LeafStreams(c10::cuda::CUDAStream capture, bool differentiates)
      : capture_(capture), differentiates_(differentiates) {}
  LeafStreams(const LeafStreams&) = delete;
  LeafStreams& operator=(const LeafStreams&) = delete;
  ~LeafStreams() override { restore(); }

  [[nodiscard]] trace::OpInterest interest() const override { return {.outputs = false}; }
  void on_op_begin(const trace::OpSpan& op) override;
  /// A leaf whose node may be asked for before any operation has it: by an autograd function, which asks first of all.
  void expect(const at::Tensor& leaf) {
    if (leaf.requires_grad() && leaf.is_leaf()) visit(leaf);
  }

 private:
  struct Replaced {
    at::Tensor leaf;
    torch_abi::NodeRef<> node;
  };
  struct Moved {
    at::Tensor leaf;
    torch_abi::NodeRef<> node;
    c10::Stream from;
  };

  void visit(const at::Tensor& leaf);
  void restore() noexcept;

  c10::cuda::CUDAStream capture_;
  bool differentiates_;
  ska::flat_hash_set<const c10::TensorImpl*> seen_;
  std::vector<Replaced> replaced_;
  std::vector<Moved> moved_;
};

}  // namespace pianola::graph

#pragma once
#include <pianola/core/error.hpp>
#include <pianola/trace/op_stream.hpp>

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/flat_hash_map.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace torch::autograd {
struct Node;
}

namespace pianola::graph {

// Note [Gradients on another stream]
// A leaf's AccumulateGrad node runs on the stream that was current when it was made, and lives as long as any graph of
// an earlier eager step does: a loss that is still held, most often. Used in a capture it would take the backward pass
// to that stream, and the default stream cannot be captured. So while a step warms up and is recorded, each leaf gets a
// new node, made on the capture stream; afterwards it has its old one back. A node with hooks (DDP's) cannot be
// replaced; if the capture then fails, the leaf is named.

/// Gives the leaves of a step AccumulateGrad nodes on the capture stream while it lives.
class LeafStreams final : public trace::OpObserver {
 public:
  explicit LeafStreams(c10::cuda::CUDAStream capture) : capture_(capture) {}
  LeafStreams(const LeafStreams&) = delete;
  LeafStreams& operator=(const LeafStreams&) = delete;
  ~LeafStreams() override { restore(); }

  [[nodiscard]] trace::OpInterest interest() const override { return {.outputs = false}; }
  void on_op_begin(const trace::OpSpan& op) override;

  /// A leaf whose gradient stays on another stream; nothing if there is none.
  [[nodiscard]] std::optional<Diagnosis> explain() const;

 private:
  void visit(const at::Tensor& leaf);
  void restore() noexcept;

  c10::cuda::CUDAStream capture_;
  ska::flat_hash_set<const c10::TensorImpl*> seen_;
  std::vector<std::pair<at::Tensor, std::shared_ptr<torch::autograd::Node>>> replaced_;
  std::vector<at::Tensor> stuck_;
};

}  // namespace pianola::graph

#pragma once
#include <pianola/callable/captured_call.hpp>
#include <pianola/callable/forward_gradients.hpp>
#include <pianola/callable/graphed_callable.hpp>
#include <pianola/callable/undo.hpp>
#include <pianola/graph/outside_guard.hpp>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace torch::autograd {
struct AutogradMeta;
}

namespace pianola::callable {

/// Sees in one tight loop whether autograd would treat the parameters of a call as it did. Whether they are still where
/// they were is the graphed callable's to see, which keeps them.
class LeafGuard {
 public:
  /// @param with_hooks  Whether hooks matter: a gradient that the backward graph adds itself calls none.
  LeafGuard(std::vector<at::Tensor> leaves, bool with_hooks);
  [[nodiscard]] bool intact() const noexcept;

 private:
  struct Leaf {
    const torch::autograd::AutogradMeta* meta;
    bool had_hooks;
  };
  std::vector<at::Tensor> leaves_;
  std::vector<Leaf> dense_;
  bool with_hooks_;
};

/// A call whose backward pass, if there is one, comes from outside.
class CallableGraph final : public CapturedCall {
 public:
  /// @param undo  Where replays check reads.
  CallableGraph(GraphedCallable graphed, graph::OutsideGuard outside, LeafGuard leaves, ForwardGradients gradients,
                std::optional<Undo> undo);

  /// Gradients of weights that were left for later are computed, and calls in flight leave none.
  ~CallableGraph() override;

  [[nodiscard]] bool is_stale() const override {
    return !outside_.intact() || !leaves_.intact() || !gradients_.are_as_found();
  }
  [[nodiscard]] std::string why_stale() const override;
  [[nodiscard]] bool is_free() const override { return graphed_.in_flight() == 0; }
  [[nodiscard]] std::vector<at::Tensor> replay(std::span<const at::Tensor> inputs) override {
    std::vector<at::Tensor> results = undo_ ? replay_or_undo(inputs) : graphed_.call(inputs);
    gradients_.drop();
    return results;
  }
  [[nodiscard]] std::shared_ptr<CapturedCallable> debtor() const noexcept override;
  [[nodiscard]] std::vector<at::Tensor> static_inputs() const override;
  [[nodiscard]] std::vector<BranchInfo> branches() const override { return graphed_.info().branches; }

 private:
  std::vector<at::Tensor> replay_or_undo(std::span<const at::Tensor> inputs);

  GraphedCallable graphed_;
  graph::OutsideGuard outside_;
  LeafGuard leaves_;
  ForwardGradients gradients_;
  std::optional<Undo> undo_;
};

}  // namespace pianola::callable

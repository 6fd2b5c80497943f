#pragma once
#include <pianola/torch_abi/autograd_node.hpp>

#include <torch/csrc/autograd/function.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace pianola::callable {

class CapturedCallable;
class CapturedMode;
struct Pass;

/// What autograd sees of a call: one node, with an edge per input that requires grad, and one per parameter whose
/// gradient goes through autograd. Owns its call's slot until its backward has run for the last time.
class BackwardNode final : public torch_abi::OwnNode {
 public:
  /// @param call  The number of the call, from 1; the pass is held by it from now on.
  BackwardNode(std::shared_ptr<CapturedCallable> callable, CapturedMode& mode, Pass& pass, std::uint64_t call,
               int microbatch);
  ~BackwardNode() override;

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;
  void release_variables() override;
  std::string name() const override { return "GraphedCallableBackward"; }

  CapturedMode& mode() const noexcept { return mode_; }
  Pass& pass() const noexcept { return pass_; }
  int microbatch() const noexcept { return microbatch_; }

  /// Lets autograd see a parameter whose gradient the graph adds itself, for a backward() that asks for named tensors.
  void expose(std::size_t parameter, torch::autograd::Edge edge);
  /// Those, in the order of their edges, which come last.
  const std::vector<std::size_t>& exposed() const noexcept { return exposed_; }

 private:
  void let_go() noexcept override;
  torch::autograd::variable_list run(const torch::autograd::variable_list& gradients);
  void check_may_run() const;

  std::shared_ptr<CapturedCallable> callable_;  // nullptr: it has let go, and mode and pass may be gone
  CapturedMode& mode_;
  Pass& pass_;
  std::uint64_t call_;
  int microbatch_;                    // of a schedule, from 1
  std::vector<std::size_t> exposed_;  // positions in ParameterGradients::parameters()
  bool released_ = false;
  bool ran_ = false;
};

}  // namespace pianola::callable

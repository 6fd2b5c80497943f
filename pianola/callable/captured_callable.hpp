#pragma once
#include <pianola/callable/backward_node.hpp>
#include <pianola/callable/captured_mode.hpp>
#include <pianola/callable/graphed_callable.hpp>
#include <pianola/callable/input_buffers.hpp>
#include <pianola/callable/result_copies.hpp>
#include <pianola/callable/schedule_turn.hpp>
#include <pianola/core/one_call.hpp>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace pianola::callable {

/// What a GraphedCallable is inside: its modes, and what a call and a backward do with them.
class CapturedCallable : public std::enable_shared_from_this<CapturedCallable> {
 public:
  CapturedCallable(std::shared_ptr<const Subject> subject, const CallableOptions& options, c10::Device device,
                   GraphPoolRef pool, int layer, std::shared_ptr<ScheduleTurn> turn);

  void add(std::unique_ptr<CapturedMode> mode) { modes_[mode->mode().index()] = std::move(mode); }

  [[nodiscard]] std::vector<at::Tensor> call(std::span<const at::Tensor> inputs);
  [[nodiscard]] c10::IValue forward(const std::vector<c10::IValue>& inputs);
  [[nodiscard]] torch::autograd::variable_list backward(const BackwardNode& node,
                                                        const torch::autograd::variable_list& gradients);

  /// GraphedCallable::backward_weights().
  bool backward_weights(int microbatch = 0);
  /// Of one that is dropped: computes what is left, and backward passes from now on leave nothing.
  void compute_at_once() noexcept;
  /// Pass::owes of what backward_weights() would compute; 0: nothing is left.
  [[nodiscard]] std::uint64_t oldest_debt() const noexcept;

  [[nodiscard]] std::vector<at::Tensor> static_inputs() const;
  /// Of all modes and slots.
  [[nodiscard]] std::vector<at::Tensor> all_static_inputs() const;
  void check_current(const at::Tensor& output) const;
  [[nodiscard]] int in_flight() const noexcept;
  [[nodiscard]] int next_microbatch() const;
  void restart_schedule();
  void reset();

  [[nodiscard]] const std::string& name() const noexcept { return subject_->name; }
  [[nodiscard]] bool retains_graph() const noexcept { return options_.retain_graph; }
  [[nodiscard]] GraphPoolRef pool() const;
  [[nodiscard]] CallableInfo info() const;

 private:
  struct Turn {
    Pass* pass;
    int microbatch;
  };
  struct Debt {
    CapturedMode* mode;
    Pass* pass;  // nullptr: nothing is left
  };
  static constexpr const char* kSubject = "a graphed callable";

  [[nodiscard]] Debt find_debt() const noexcept;
  void note_debt(const BackwardNode& node, const CapturedMode::Unreached& unreached) const;
  void forgive(Pass& pass) const noexcept;
  struct Routed {
    torch::autograd::edge_list edges;
    std::vector<at::Tensor> gradients;
  };
  /// @return  What goes through autograd, and has still to.
  Routed launch_weights(CapturedMode& mode, Pass& pass) const;
  [[nodiscard]] static Routed take_routed(RoutedGradients& routed, const Pass& pass);
  static void accumulate(const Routed& routed);
  [[nodiscard]] Mode current_mode() const;
  [[nodiscard]] int slots() const;
  /// The mode that replays these inputs; nullptr where the callable is to run eagerly.
  [[nodiscard]] CapturedMode* mode_for(std::span<const at::Tensor> inputs);
  CapturedMode* mode_not_captured(Mode mode, std::span<const at::Tensor> inputs);
  void check_alive(const char* call) const;
  [[nodiscard]] ScheduleTurn& turn() const;
  [[nodiscard]] Turn take_turn(CapturedMode& mode) const;
  [[nodiscard]] Pass& next_pass(const CapturedMode& mode) const;
  [[nodiscard]] static Pass* oldest_pass(const CapturedMode& mode);
  void launch_forward(Pass& pass, std::span<const at::Tensor> inputs) const;
  static void launch_backward(CapturedMode& mode, Pass& pass, std::span<const at::Tensor> gradients);
  [[nodiscard]] std::vector<at::Tensor> replay(CapturedMode& mode, std::span<const at::Tensor> inputs);
  [[nodiscard]] std::vector<at::Tensor> outputs_of(const CapturedMode& mode, Pass& pass,
                                                   std::span<const at::Tensor> inputs, ResultCopies& copies) const;
  [[nodiscard]] torch::autograd::variable_list gradients_of_edges(const BackwardNode& node, bool for_all,
                                                                  const CapturedMode::Unreached& unreached) const;
  [[nodiscard]] static std::vector<std::size_t> wanted_of_exposed(const BackwardNode& node, bool for_all,
                                                                  const std::vector<std::size_t>& unreached);
  void add_routed(const BackwardNode& node, const std::vector<std::size_t>& unreached,
                  torch::autograd::variable_list& gradients) const;
  void connect(CapturedMode& mode, Pass& pass, int microbatch, std::span<const at::Tensor> inputs,
               const std::vector<at::Tensor>& outputs);

  std::array<std::unique_ptr<CapturedMode>, kModes> modes_;
  std::shared_ptr<const Subject> subject_;
  CallableOptions options_;
  c10::Device device_;
  GraphPoolRef pool_;
  int layer_;
  std::shared_ptr<ScheduleTurn> turn_;  // nullptr without a schedule
  std::uint64_t calls_ = 0;
  bool alive_ = true;
  bool computes_at_once_ = false;  // nobody is there to call backward_weights()
  OneCall one_call_;
};

/// As make_graphed_callable(), for a callable that never runs at once with others whose inputs lie in these buffers.
/// @param buffers  nullptr: inputs have memory of their own. So have those of several slots.
GraphedCallable make_graphed_callable_in(InputBuffers* buffers, Callable callable,
                                         const std::vector<c10::IValue>& sample, const CallableOptions& options);

/// Captures one more mode of a callable, on its own, with these tensors for samples and a pool of its own.
/// @param slots  Microbatches in flight, where the mode has gradients.
std::unique_ptr<CapturedMode> capture_mode(const Subject& subject, Mode mode, std::span<const at::Tensor> sample,
                                           const CallableOptions& options, int slots, c10::Device device);

}  // namespace pianola::callable

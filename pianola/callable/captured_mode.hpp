#pragma once
#include <pianola/callable/ambient.hpp>
#include <pianola/callable/backward_log.hpp>
#include <pianola/callable/callable.hpp>
#include <pianola/callable/gradient_targets.hpp>
#include <pianola/callable/guard.hpp>
#include <pianola/callable/input_buffers.hpp>
#include <pianola/callable/leaf_scope.hpp>
#include <pianola/callable/module_view.hpp>
#include <pianola/callable/options.hpp>
#include <pianola/callable/output_origin.hpp>
#include <pianola/callable/parameter_gradients.hpp>
#include <pianola/callable/pass.hpp>
#include <pianola/callable/routed_gradients.hpp>
#include <pianola/callable/structure.hpp>
#include <pianola/graph/island.hpp>
#include <pianola/graph/path_check.hpp>

#include <c10/util/flat_hash_map.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace pianola::callable {

/// Which of its four behaviours a callable shows.
struct Mode {
  bool training = true;
  bool gradients = true;
  [[nodiscard]] std::size_t index() const noexcept { return (training ? 2U : 0U) + (gradients ? 1U : 0U); }
  friend bool operator==(const Mode&, const Mode&) = default;
};
inline constexpr std::size_t kModes = 4;
/// "in training mode with gradients".
std::string in_words(Mode mode);

/// What captures of one make_graphed_callables call share while they go on.
struct CaptureContext {
  const CallableOptions& options;
  c10::Device device;
  GraphPoolRef pool;
  /// Whether activations and results have to survive replays of every other graph of the call, in any order.
  bool any_order = false;
  LeafScope leaves = {};
  ska::flat_hash_set<const c10::TensorImpl*> hooked = {};     ///< Leaves that had hooks.
  ska::flat_hash_set<const c10::TensorImpl*> watched = {};    ///< Of them, by DistributedDataParallel or its like.
  ska::flat_hash_map<const c10::TensorImpl*, int> uses = {};  ///< Callables that differentiate a leaf.
  std::shared_ptr<GradientGroup> gradients = std::make_shared<GradientGroup>();
  std::vector<at::Tensor> output_gradients = {};  ///< Shared by all backward passes: one runs at a time.

  [[nodiscard]] CaptureOptions capture_options(int warmup) const;
  /// The `ordinal`-th of the shared static output gradients that look like `output`.
  at::Tensor output_gradient_like(const at::Tensor& output, at::IntArrayRef strides, std::size_t ordinal);
};

/// What a callable does and looks like; shared by its modes.
struct Subject {
  Subject(Callable callable_, const std::vector<c10::IValue>& sample, std::string name_);

  /// Its result on these leaves.
  [[nodiscard]] c10::IValue run(std::span<const at::Tensor> inputs) const;

  Callable callable;
  std::unique_ptr<const ModuleView> module;
  Structure inputs;
  std::string name;      ///< "callable 3", for messages.
  PassHooks hooks = {};  ///< Around warm-up and capture.
  PassHooks replay_hooks = {};
  bool delays_weights = false;  ///< CallableOptions::delay_weight_gradients, or its chunk's.
};

/// What the warm-up of a pass did, which its capture has to do too.
struct WarmedUpPath {
  graph::PathCheck check;
  bool is_captured = false;
};
struct WarmedUpPaths {
  WarmedUpPath forward, backward, weights;
};

/// The graphs of one callable in one mode: as many passes as slots. Made in the order of the member functions.
class CapturedMode {
 public:
  /// @param buffers  Of the static inputs of the only slot; nullptr: they have memory of their own.
  CapturedMode(const Subject& subject, Mode mode, std::span<const at::Tensor> sample, int slots, c10::Device device,
               InputBuffers* buffers = nullptr);
  CapturedMode(const CapturedMode&) = delete;
  CapturedMode& operator=(const CapturedMode&) = delete;
  ~CapturedMode();

  void warm_up(CaptureContext& context);
  void decide_gradients(const CaptureContext& context);
  void capture_forward(CaptureContext& context, std::size_t slot);
  void capture_backward(CaptureContext& context, std::size_t slot);
  /// What the backward pass of the slot left for later; nothing where that is nothing.
  void capture_weights(CaptureContext& context, std::size_t slot);
  void finish();
  /// Drops graphs and memory; nothing may be called on it afterwards.
  void release() noexcept;

  [[nodiscard]] Mode mode() const noexcept { return mode_; }
  [[nodiscard]] const std::vector<std::unique_ptr<Pass>>& passes() const noexcept { return passes_; }
  [[nodiscard]] bool has_backward() const noexcept { return !differentiable_.empty(); }

  /// In constant time per input, and one tight loop over parameters.
  [[nodiscard]] bool accepts(std::span<const at::Tensor> inputs) const;
  [[nodiscard]] std::vector<std::string> differences(std::span<const at::Tensor> inputs) const;
  /// Why a backward must not run on this pass now; empty if it may.
  /// @param steady  Whether no parameter has a hook, ParameterGradients::is_steady().
  [[nodiscard]] std::optional<Diagnosis> backward_offence(const Pass& pass, bool steady) const;
  /// The same of what the backward pass left for later.
  [[nodiscard]] std::optional<Diagnosis> weights_offence(bool steady) const;
  /// Why that can never be computed any more.
  [[nodiscard]] std::optional<Diagnosis> lost_weights(const Pass& pass) const;

  [[nodiscard]] const Structure& outputs() const noexcept { return *outputs_; }
  /// For each leaf of the result, its place in Pass::outputs.
  [[nodiscard]] const std::vector<std::size_t>& output_of_leaf() const noexcept { return output_of_leaf_; }
  /// Where the memory of Pass::outputs comes from.
  [[nodiscard]] const OutputOrigins& origins() const noexcept { return origins_; }
  /// Positions in Pass::outputs that require grad, in order.
  [[nodiscard]] const std::vector<std::size_t>& differentiable() const noexcept { return differentiable_; }
  /// Of each gradient that the backward pass gives the input; see CallableOptions::gradient_per_use.
  [[nodiscard]] const std::vector<std::size_t>& input_uses() const noexcept { return input_uses_; }
  /// What no gradient flows to where some outputs' gradients are undefined: they did not reach the loss. Positions in the
  /// parameters of direct() and routed(), and among the inputs.
  struct Unreached {
    std::vector<std::size_t> direct, routed, inputs;
    std::vector<std::size_t> later_direct, later_routed;  // of what later() is for
  };
  [[nodiscard]] Unreached unreached(std::span<const at::Tensor> output_gradients) const;
  /// Parameters whose gradients the graph adds into `p.grad`; nullptr if there are none.
  [[nodiscard]] ParameterGradients* direct() noexcept { return now_.direct ? &*now_.direct : nullptr; }
  /// Parameters whose gradients go through autograd; nullptr if there are none.
  [[nodiscard]] RoutedGradients* routed() noexcept { return now_.routed ? &*now_.routed : nullptr; }
  /// Those that the backward pass leaves for Pass::weights.
  [[nodiscard]] GradientTargets& later() noexcept { return later_; }
  [[nodiscard]] const GradientTargets& later() const noexcept { return later_; }
  [[nodiscard]] bool delays() const noexcept { return delays_; }
  [[nodiscard]] std::size_t static_bytes() const;

  /// Leaves that Pass::weights reads.
  [[nodiscard]] const std::vector<at::Tensor>& weights_read() const noexcept { return weights_read_; }
  /// The call that holds this pass now.
  void note_call(Pass& pass, const torch_abi::NodeRef<>& node);
  /// Lets autograd see those of these parameters that the graph would add itself, in all calls in flight. `in_use` gets
  /// what must not go before all locks are free.
  void expose(const ska::flat_hash_set<const c10::TensorImpl*>& parameters, std::vector<torch_abi::NodeRef<>>& in_use);
  /// Does so in all callables of the process.
  static void expose_in_all(std::span<const at::Tensor> parameters);

 private:
  struct Gradients {
    std::vector<at::Tensor> leaves;
    std::vector<at::Tensor> values;
  };
  void run_eagerly(CaptureContext& context);
  static void record_as_warmed_up(WarmedUpPath* path, const std::function<void()>& run);
  std::vector<at::Tensor> run_forward(const Pass& pass);
  [[noreturn]] void refuse_other_outputs() const;
  std::vector<at::Tensor> each_once(const std::vector<at::Tensor>& leaves, const Pass& pass);
  void note_leaf(CaptureContext& context, const at::Tensor& leaf);
  static void silence(CaptureContext& context, const at::Tensor& leaf);
  void check_samples() const;
  void check_no_leaf(const std::vector<at::Tensor>& outputs, std::span<const at::Tensor> inputs) const;
  void enter_process_list();
  void leave_process_list() noexcept;
  [[nodiscard]] bool is_parameter(const at::Tensor& input) const;
  [[nodiscard]] bool goes_through_autograd(const CaptureContext& context, const at::Tensor& parameter) const;
  void run_backward(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& gradients,
                    bool retain) const;
  void warm_up_backward(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& gradients, bool retain);
  [[nodiscard]] std::unique_ptr<WeightSplit> split_off_weights(const CaptureContext& context,
                                                               const std::vector<at::Tensor>& outputs,
                                                               std::uint64_t began) const;
  void run_weights(WeightSplit& split, bool retain) const;
  void note_delayed(const WeightSplit* split);
  void check_delayed(const CaptureContext& context) const;
  [[nodiscard]] std::vector<at::Tensor> take_parameter_gradients(bool later) const;
  [[nodiscard]] std::optional<Diagnosis> reads_offence(const Pass& pass, const std::vector<bool>& inputs,
                                                       const std::vector<bool>& outputs, bool later) const;
  [[noreturn]] void refuse_by_name(const at::Tensor& parameter) const;
  [[nodiscard]] bool may_run_backward_in(const Ambient& now) const;
  [[nodiscard]] std::optional<Diagnosis> hook_offence(const GradientTargets& targets, bool steady) const;
  [[nodiscard]] Gradients take_gradients() const;
  [[nodiscard]] std::vector<std::int64_t> gradient_strides(const CaptureContext& context, const at::Tensor& output,
                                                           std::size_t position) const;
  [[nodiscard]] std::vector<at::Tensor> ones_like_gradients(const CaptureContext& context,
                                                            const std::vector<at::Tensor>& outputs) const;
  void make_output_gradients(CaptureContext& context, const Pass& pass);
  [[nodiscard]] std::vector<at::Tensor> leaves_of_uses(const CaptureContext& context, const Pass& pass,
                                                       const std::vector<at::Tensor>& outputs);
  [[nodiscard]] std::vector<at::Tensor> take_input_gradients(const std::vector<at::Tensor>& leaves,
                                                             bool allow_unused) const;
  void find_what_outputs_reach(const Pass& pass);
  void find_what_backward_reads(const Pass& pass);

  const Subject& subject_;
  Mode mode_;
  Ambient ambient_;
  Ambient ambient_in_backward_;  // the same, without autocast
  // Where autocast is on: what the backward pass did in the region, in the first warm-up run, and outside of it, later.
  std::optional<BackwardLog> backward_in_region_, backward_outside_;
  bool backward_is_same_in_region_ = false;
  std::vector<bool> flags_;
  std::vector<InputGuard> input_guards_;
  ParameterGuard parameter_guard_;
  std::vector<std::unique_ptr<Pass>> passes_;

  std::vector<at::Tensor> leaves_;      // that the forward reads
  std::vector<at::Tensor> parameters_;  // those of them that get a gradient, in order
  std::vector<bool> is_delayed_;        // for each of them whether the backward pass leaves it for later
  bool delays_ = false;                 // any of them
  GradientTargets now_, later_;

  std::optional<Structure> outputs_;
  std::vector<std::size_t> output_of_leaf_;
  EarlierResults warmup_results_;
  std::vector<graph::IslandNotes> islands_;  // of the last warm-up run
  std::optional<WarmedUpPaths> paths_;       // until all is captured, where something can be told
  bool makes_results_ = true;                // not only views of its inputs
  OutputOrigins origins_;
  std::vector<std::size_t> differentiable_;
  std::vector<std::size_t> differentiable_inputs_;  // that require grad
  std::vector<std::size_t> input_uses_;
  std::vector<bool> is_returned_;  // for each input whether it is a result itself
  struct Reach {                   // of one output: which inputs and parameters its gradient flows to
    std::vector<bool> inputs, parameters;
  };
  std::vector<Reach> reach_;  // per differentiable output
  std::vector<bool> backward_reads_input_, backward_reads_output_;
  std::vector<bool> weights_read_input_, weights_read_output_;
  std::vector<at::Tensor> weights_read_;
  std::vector<at::Tensor> output_gradients_;     // per differentiable output
  std::vector<const c10::TensorImpl*> samples_;  // until it is warm
  std::mutex calls_;                             // guards Pass::node
};

}  // namespace pianola::callable

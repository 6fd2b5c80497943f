#pragma once
#include <pianola/graph/options.hpp>
#include <pianola/graph/pool.hpp>
#include <pianola/parallel/options.hpp>
#include <pianola/schedule/schedule.hpp>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace pianola {

/// How the backward pass of a graphed callable hands out the gradients of parameters. All three leave in `p.grad` what
/// eager would, also over several microbatches; they differ in cost, in who owns the memory, and in what autograd sees.
///
/// With `clone` and `alias` autograd sees the parameters as in eager: torch::autograd::grad() with respect to them,
/// backward() for named ones, hooks registered at any time, and uses of a parameter outside of the callable all work.
/// The host's time then grows with the number of parameters, as it does in eager.
enum class GradPolicy {
  accumulate,  ///< The graph itself adds into `p.grad`, past autograd. No work per parameter outside of it.
  clone,       ///< Autograd gets copies, which are the caller's for good.
  alias,       ///< Autograd gets the graph's own buffers. The next backward overwrites them: what still is `p.grad`, or
               ///< was handed out and is in use, is copied out first; views of it are not. Nothing is copied where all
               ///< gradients are set to none before each backward.
};

/// What a call returns.
enum class OutputPolicy {
  alias,  ///< The graph's own buffers: the next call in the same slot overwrites them.
  clone,  ///< Copies that are the caller's.
};

/// What to do with a call whose inputs, modes or parameters differ from those that were captured.
enum class OnMismatch {
  refuse,  ///< Throw GuardError, which lists every difference.
  eager,   ///< Run the callable eagerly, as if it had not been graphed.
};

/// What to do with a call in a mode (training flag, grad mode) that was not captured.
enum class OnOtherMode {
  refuse,   ///< Throw GuardError.
  eager,    ///< Run the callable eagerly.
  capture,  ///< Capture the mode now, from this call's inputs, and replay it from then on.
};

/// What to do with a call that finds no free slot.
enum class OnFull {
  refuse,    ///< Throw UsageError.
  overtake,  ///< Take the slot of the oldest call, whose backward is refused from then on. Not with a schedule.
};

/// Functions that run around the passes of one callable, and are not recorded; empty ones are not called.
struct PassHooks {
  std::function<void()> before_forward = {};
  std::function<void()> after_forward = {};
  std::function<void()> before_backward = {};
  std::function<void()> after_backward = {};
};

/// How make_graphed_callable(s) captures, and what its calls do. Every field has a safe default.
struct CallableOptions {
  /// Eager runs, forward and backward, before recording; at least 1, which finds the parameters. They leave no trace.
  int warmup = 3;
  /// See GradPolicy. With `accumulate`, a parameter that has hooks, that several callables of the call share, or that
  /// stands in `through_autograd` is treated as with `clone`.
  GradPolicy grad = GradPolicy::accumulate;
  OutputPolicy output = OutputPolicy::alias;
  /// Microbatches that may be in flight, between forward and backward, at once. Costs static buffers and saved
  /// activations for each. With a `schedule`, the schedule says it.
  int slots = 1;
  /// Lets backward(retain_graph=true) be followed by another one; the backward pass then reuses no activations.
  bool retain_graph = false;
  /// Lets a sample input that requires grad get none.
  bool allow_unused_input = false;
  /// Off: no result requires grad. See CaptureOptions::differentiates.
  bool differentiates = true;
  /// Hands out the gradient of each use of an input by itself, so that autograd adds them up, and those of other uses of the same
  /// tensor, in eager's order. Costs one addition outside of the graph for each use but the first. Off: the graph adds them up, and
  /// where the tensor is used elsewhere as well, sums of three and more may round otherwise than in eager.
  bool gradient_per_use = false;
  /// Strides of the gradients that later backward passes bring, for each tensor of the result; empty, or empty for one: as the
  /// output lies. Kernels may be chosen by them, which round differently. Others are brought into this layout.
  std::vector<std::vector<std::int64_t>> gradient_strides = {};
  /// Accept a capture whose operations differ from those of the last warm-up run, because a library asks whether it is
  /// captured. Off: it is refused, with both lines; with a `warmup` of 1 nothing is compared.
  bool accept_capture_path = false;
  /// Captures the forward pass in evaluation mode without gradients, too. Only for modules.
  bool evaluation = false;
  OnMismatch on_mismatch = OnMismatch::refuse;
  OnOtherMode on_other_mode = OnOtherMode::refuse;
  OnFull on_full = OnFull::refuse;
  /// With `accumulate`: parameters whose gradients autograd sees all the same, for torch::autograd::grad() with respect to
  /// them, and for parameters that eager code outside uses as well (tied weights).
  std::vector<at::Tensor> through_autograd = {};
  /// A backward pass leaves the gradients of weights for later, and GraphedCallable::backward_weights() computes them, as a
  /// graph of their own: those of matrix products and convolutions, and of biases in them. The same numbers, in two parts;
  /// the slot is busy until the second, and keeps its activations and what flows into each product until then. What is in
  /// `through_autograd` is computed at once. With a `schedule` it says which
  /// chunks do so.
  bool delay_weight_gradients = false;
  /// The order of forwards and backwards of a pipeline stage; empty: any. The callables are then all layers of chunk 1,
  /// all of chunk 2, and so on; each keeps as many slots as its chunk has microbatches in flight, and a call out of
  /// order is refused.
  Schedule schedule = {};
  /// Pool to share with other graphs; empty: one for the callables of this call.
  GraphPoolRef pool = {};
  /// Generators, besides the device's default one, that the callables draw from.
  std::vector<at::Generator> generators = {};
  /// Rebuild each graph, forward, backward and evaluation, on at most this many parallel lanes; 0: as captured;
  /// kAutoBranches: where a trial finds that faster. If it gains nothing, a graph stays as captured, and CallableInfo::branches says
  /// why. See CaptureOptions::branches.
  int branches = kAutoBranches;
  /// How `branches` goes about it.
  ParallelOptions parallel = {};
  CaptureMode mode = CaptureMode::thread_local_;
  /// Called once, before and after all warm-up runs.
  std::function<void()> pre_warmup = {};
  std::function<void()> post_warmup = {};
  /// Run around each warm-up and capture pass. Empty, or one per callable. (Transformer Engine's capture_time_hooks.)
  std::vector<PassHooks> capture_hooks = {};
  /// Run around each replay, on its stream: to gather parameters that are sharded, into their memory, or to send gradients.
  /// Those of the backward pass run around delayed gradients of weights, too. Eager calls run none. Empty, or one per
  /// callable. (Megatron-LM's manual hooks.)
  std::vector<PassHooks> replay_hooks = {};
};

}  // namespace pianola

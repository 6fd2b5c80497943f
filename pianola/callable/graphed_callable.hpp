#pragma once
#include <pianola/callable/callable.hpp>
#include <pianola/callable/options.hpp>
#include <pianola/core/export.hpp>
#include <pianola/core/report.hpp>
#include <pianola/graph/pool.hpp>
#include <pianola/parallel/branch_info.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace pianola {

namespace callable {
class CapturedCallable;
}

/// What a graphed callable holds.
struct CallableInfo {
  std::size_t graphs = 0;             ///< Captured graphs: forward, backward, delayed weights per slot; evaluation.
  std::size_t parameters = 0;         ///< Parameters whose gradients the graph adds to `p.grad`.
  std::size_t through_autograd = 0;   ///< Parameters whose gradients go through autograd.
  std::size_t delayed = 0;            ///< Of both, those whose gradients wait for backward_weights().
  std::size_t slots = 0;              ///< Microbatches that may be in flight.
  std::size_t pool_bytes = 0;         ///< Bytes of the pool, shared ones counted in full.
  std::size_t static_bytes = 0;       ///< Bytes of static inputs and parameter gradients, outside the pool.
  std::size_t executable_bytes = 0;   ///< Device memory taken by the executables, outside torch's allocator.
  std::vector<std::string> warnings;  ///< What is right but may surprise, one sentence each.
  /// What CallableOptions::branches came to, per graph: evaluation, then per slot the forward and the backward pass.
  /// Empty where it was not asked for.
  std::vector<BranchInfo> branches = {};

  [[nodiscard]] PIANOLA_API Report report() const;
};

/// A module or function whose forward and backward passes were captured; each runs with one launch.
///
/// A call copies its inputs into static ones (unless they are them), replays the forward graph and returns outputs that
/// autograd takes for the result of one operation. Its backward replays the backward graph, which adds the gradients of
/// the parameters itself; the time of a call does not depend on how many there are. Everything is bit-equal to calling
/// the original, or refused.
///
/// Inputs and outputs are flat lists of tensors (call()), one tensor (operator()), or whatever nesting of lists, tuples
/// and maps the callable takes (forward()). An undefined tensor stands for None.
///
/// Gradients of parameters do not pass through autograd: use backward(), not torch::autograd::grad() with respect to
/// parameters. GradPolicy::clone and ::alias, or CallableOptions::through_autograd for some of them, let them pass.
/// Gradients of gradients are refused.
///
/// Threads:  One call at a time per object; callables made by one call, and graphs of their pool, count as one object.
class PIANOLA_API GraphedCallable {
 public:
  GraphedCallable(GraphedCallable&&) noexcept;
  GraphedCallable& operator=(GraphedCallable&&) noexcept;
  ~GraphedCallable();

  /// Runs the forward pass on tensors, in the order of the sample's leaves; returns the leaves of the result.
  ///
  /// @throws GuardError     An input, a mode or a parameter differs from what was captured. Nothing has been launched.
  /// @throws UsageError     No slot is free, the callable was reset, or a capture is open on this thread.
  /// @throws ScheduleError  It is not this call's turn.
  /// Stream:  The current one, here and in backward. Does not synchronize with the host.
  [[nodiscard]] std::vector<at::Tensor> call(std::span<const at::Tensor> inputs);

  /// The same for a callable that returns one tensor. @throws UsageError  It returns several.
  template <typename... Tensors>
  [[nodiscard]] at::Tensor operator()(const Tensors&... inputs) {
    const std::array<at::Tensor, sizeof...(Tensors)> list = {inputs...};
    return call_one(list);
  }

  /// The same with structure, as torch::jit::Module::forward. Numbers and strings among the inputs must equal the
  /// sample's: they are frozen.
  [[nodiscard]] c10::IValue forward(const std::vector<c10::IValue>& inputs);

  /// Computes the gradients of weights that the oldest backward pass has left for later, as
  /// CallableOptions::delay_weight_gradients says: `p.grad` is then what one backward pass would have made it. Once for
  /// each backward. @return  False: nothing was left, as after calls that ran eagerly.
  ///
  /// @param microbatch  With a schedule: whose turn it has to be; 0: whoever's it is.
  /// @throws GuardError     What they need was written since, which gives them up; or a weight was frozen or got a hook since,
  ///                        which does not. Nothing has been launched.
  /// @throws ScheduleError  It is not this call's turn.
  /// @throws UsageError     The callable was reset, or a capture is open on this thread.
  /// Stream:  The current one. Does not synchronize with the host.
  bool backward_weights(int microbatch = 0);

  /// The buffers that the next call reads, in the order of the sample's leaves; in the mode that is set now. Write into
  /// them and pass them: the call then copies nothing.
  [[nodiscard]] std::vector<at::Tensor> static_inputs() const;

  /// @throws ReplayError  A later call has overwritten `output`, which this callable returned.
  /// @throws UsageError   It is no output of this callable (a view of one is none).
  void check_current(const at::Tensor& output) const;

  /// Calls whose backward has not run yet and still can, or has left gradients of weights for later.
  [[nodiscard]] int in_flight() const noexcept;

  /// With a schedule: the microbatch, from 1, of the next call. @throws ScheduleError  It is another callable's turn.
  [[nodiscard]] int next_microbatch() const;

  /// With a schedule: begins the iteration anew, for all callables of the schedule, after an abandoned one.
  void restart_schedule();

  /// Drops the graphs and their memory; later calls are refused. Computes gradients of weights that were left for later, but for
  /// those of a schedule. Gradients and outputs that somebody holds live on.
  void reset();

  [[nodiscard]] GraphPoolRef pool() const;
  [[nodiscard]] CallableInfo info() const;

  /// For the library.
  [[nodiscard]] const std::shared_ptr<callable::CapturedCallable>& captured() const noexcept { return captured_; }
  /// For the library.
  explicit GraphedCallable(std::shared_ptr<callable::CapturedCallable> captured) noexcept;

 private:
  [[nodiscard]] at::Tensor call_one(std::span<const at::Tensor> inputs);
  std::shared_ptr<callable::CapturedCallable> captured_;
};

/// Captures the forward and backward passes of several callables that run after one another, in one pool: forwards in
/// this order, backwards in reverse, or as `options.schedule` says. The modes are those of the moment: training or
/// evaluation, grad mode, autocast.
///
/// @param samples  Per callable, the arguments of one call; shapes, dtypes, devices, strides and requires_grad are what
///                 later calls must bring. The tensors are read, not kept.
/// @throws UsageError    Samples or options do not fit; a buffer requires grad; a sample input that requires grad gets
///                       none; a callable returns no tensor, or another structure in another run; it writes an input.
/// @throws CaptureError  A callable cannot be captured.
/// After a throw everything is as before: modules, parameters, gradients, hooks, buffers, generators, memory.
[[nodiscard]] PIANOLA_API std::vector<GraphedCallable> make_graphed_callables(
    std::vector<Callable> callables, const std::vector<std::vector<c10::IValue>>& samples,
    const CallableOptions& options = {});

/// The same for one.
[[nodiscard]] PIANOLA_API GraphedCallable make_graphed_callable(Callable callable,
                                                                const std::vector<c10::IValue>& sample,
                                                                const CallableOptions& options = {});

}  // namespace pianola

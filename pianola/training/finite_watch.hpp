#pragma once
#include <pianola/core/error.hpp>
#include <pianola/core/export.hpp>
#include <pianola/graph/options.hpp>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace pianola {

class Optimizer;

/// A checked tensor held NaN or infinity: what FiniteWatch::poll() and FiniteWatch::wait() stop training with.
class PIANOLA_API NonFiniteError : public Error {
 public:
  using Error::Error;
  ~NonFiniteError() override;
};

struct FiniteWatchOptions {
  /// Check gradients too. Off if a GradScaler is on, which handles gradients that overflow: it skips the step and lowers the
  /// scale.
  bool gradients = true;
  /// How many tensors may be checked, those of all different steps together; 4 bytes each.
  std::size_t max_tensors = 16384;
};

/// The first step in which a checked tensor was not finite.
struct NonFiniteFinding {
  std::int64_t step = 0;             ///< Counted from 1, see FiniteWatch::reset().
  bool step_is_exact = true;         ///< Off after 2^24 steps: it was `step` or a later one.
  std::string tensor;                ///< The first one, in the order of the checks.
  bool is_nan = false;               ///< Else infinite.
  std::vector<std::string> tensors;  ///< All of that step.
};

/// Finds NaN and infinity in losses and gradients without a host synchronization: checks run on the device, as part of
/// the step, and the host learns of a bad one a step later.
///
///     pianola::FiniteWatch watch(device);
///     graph.capture([&] {
///       optimizer.zero_grad();
///       loss = loss_of(model, batch);
///       loss.backward();
///       watch.check("loss", loss);
///       watch.check_gradients(optimizer);
///       optimizer.step({.found_inf = watch.found_inf()});   // a bad step leaves the parameters as they were
///       watch.end_step();
///     });
///     for (...) {
///       graph.replay();
///       watch.poll();                                       // NonFiniteError: 'loss' is NaN in step 7
///     }
///     watch.wait();
///
/// The record of the first bad step stays until reset(), however late the host looks. Nothing that is checked is changed.
///
/// The calls in the step may be captured, in any number of graphs. After an exception between check() and end_step(), call
/// abandon_step().
///
/// Cost:     In a step that checks float32 scalars: two kernels and a copy of 4 bytes, however many they are. Norms of
///           larger tensors come on top (three kernels for a list), unless clip_grad_norm_() has them already.
/// Streams:  The current one of the device, the same one for the steps and for poll(), wait() and reset().
/// Threads:  One call at a time per object.
class PIANOLA_API FiniteWatch {
 public:
  /// @throws UsageError   `max_tensors` is 0.
  /// @throws DeviceError, UnsupportedError  As Graph: there is no such device, or no backend for it.
  explicit FiniteWatch(c10::Device device, const FiniteWatchOptions& options = {});
  FiniteWatch(const FiniteWatch&) = delete;
  FiniteWatch& operator=(const FiniteWatch&) = delete;
  FiniteWatch(FiniteWatch&&) noexcept = default;
  FiniteWatch& operator=(FiniteWatch&&) noexcept = default;
  ~FiniteWatch() = default;

  // In the step.

  /// Checks one tensor of any shape and floating-point dtype. A float32 scalar is read in found_inf() or end_step(),
  /// and must not be changed in place before.
  /// @throws UsageError  Undefined, not floating point, or on another device.
  void check(std::string name, const at::Tensor& tensor);
  /// The same for many at once.
  void check(std::span<const NamedTensor> tensors);
  /// The gradients of those parameters that have one. Nothing with FiniteWatchOptions::gradients off.
  void check_gradients(std::span<const NamedTensor> parameters);
  /// The gradients of an optimizer's parameters, named by number.
  void check_gradients(const Optimizer& optimizer);
  /// Gradients by what is computed from them already: `norms` is floating point [n], one for each name. Nothing with
  /// FiniteWatchOptions::gradients off.
  void check_gradient_norms(std::vector<std::string> names, const at::Tensor& norms);

  /// Float32 [] on the device: 1 from the first bad check on, 0 before, for GradScale::found_inf: no step from the bad
  /// one on then changes a parameter. Counts the checks made so far in this step. The tensor is always the same.
  at::Tensor found_inf();
  /// Ends the step: counts it, and sends the host word. Call it after the last check.
  void end_step();
  /// Forgets the checks since the last end_step(), after an exception in between.
  void abandon_step() noexcept;

  // Outside, after the step or its replay.

  /// Throws once the device has told that an earlier step was bad: at the earliest in the call for the step after it,
  /// also on the CPU. Call it once per step. While all is well it does not wait and asks CUDA nothing: it reads one
  /// word of pinned memory. Before it throws it waits for the device, to read which tensor it was.
  /// @throws NonFiniteError  Names step and tensor; so does every later call until reset().
  /// @throws UsageError      Called inside a capture.
  void poll();
  /// Waits for the device, and throws if any step so far was bad: for the end of training.
  /// @throws NonFiniteError, UsageError  As poll().
  void wait();
  /// What poll() would throw, as values. Waits for the device.
  [[nodiscard]] std::optional<NonFiniteFinding> find() const;

  /// Forgets what was found and goes on counting behind step `steps_done`, in place, so that graphs go on. Does not
  /// synchronize. @throws UsageError  A negative number.
  void reset(std::int64_t steps_done = 0);

  [[nodiscard]] const FiniteWatchOptions& options() const noexcept { return options_; }

 private:
  struct Pending {
    std::vector<std::string> names;
    std::vector<at::Tensor> values;       // float32, together as many elements as names
    std::vector<std::uint32_t> versions;  // of `values` when they were noted
  };

  void check_usable(const at::Tensor& tensor, const std::string& name) const;
  void note(Pending pending);
  void flush();
  std::int64_t slots_for(const std::vector<std::string>& names);
  void drop_other_context() noexcept;
  [[noreturn]] void stop(const NonFiniteFinding& finding) const;

  c10::Device device_;
  FiniteWatchOptions options_;
  at::Tensor record_;  // float32: flag, steps, then a slot per tensor; see Note [The record freezes]
  at::Tensor flag_;    // the views of it that every step uses
  at::Tensor steps_;
  at::Tensor one_step_;                                     // what a step adds to `steps_`, in the units of the record
  at::Tensor unscaled_;                                     // 1
  at::Tensor word_;                                         // pinned: the flag as it arrived
  std::map<std::vector<std::string>, std::int64_t> slots_;  // where the values of these names begin
  std::int64_t used_ = 0;

  std::vector<Pending> pending_;
  bool counted_ = false;   // this step is in `steps_` already
  bool captured_ = false;  // `pending_` and `counted_` are of a captured run
  std::int64_t steps_before_ = 0;
  std::int64_t polls_ = 0;
  std::optional<NonFiniteFinding> found_ = std::nullopt;
};

}  // namespace pianola

#pragma once
#include <pianola/core/export.hpp>
#include <pianola/graph/options.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace pianola {

/// What of a GradScaler an optimizer needs: float32, of one element, on the parameters' device; undefined: no scaler is
/// in use.
struct GradScale {
  at::Tensor scale =
      {};  ///< The factor by which gradients are still too large; undefined if they are unscaled already.
  at::Tensor found_inf = {};  ///< 1: a gradient is not finite, and the step leaves everything as it was; 0 otherwise.
};

/// Parameters that share options, for the constructors of optimizers.
template <typename Options>
struct ParameterGroup {
  std::vector<at::Tensor> parameters;
  Options options = {};
};

/// An optimizer all of whose state is on the device: learning rates, step counters, moments. Nothing in a step reads
/// the host, so that it can be captured, and a replay goes on counting. Steps use ATen's fused kernels, and are equal
/// bit for bit to those of torch.optim's optimizer of the same name with fused=True, capturable=True and its learning
/// rate in a float32 tensor.
///
/// Parameters are leaves of one device, grouped; options of a group other than the learning rate are numbers of the
/// host, and a capture freezes them.
///
/// The fused kernels want parameters, gradients and state laid out alike in memory; others are computed on dense
/// copies, with the same numbers. Gradients may be replaced or undefined between steps. A parameter without a gradient
/// is left alone and its step is not counted.
///
/// Streams:  The current one of the parameters' device. Nothing synchronizes, but state_dict() and load_state_dict()
///           may.
/// Threads:  One call at a time per object.
class PIANOLA_API Optimizer {
 public:
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;
  virtual ~Optimizer() = default;

  /// Changes the parameters whose `.grad` is defined; with GradScale::scale, their gradients are unscaled in place.
  /// State is made at construction, never here: a step that is captured allocates nothing that stays.
  ///
  /// @throws UsageError  A gradient is sparse, or of another dtype or device than its parameter; a parameter's dtype,
  ///                     shape or device is not what the optimizer was made for; `scale` is not one float32 element
  ///                     each on the parameters' device. Groups before the one at fault may have stepped.
  virtual void step(const GradScale& scale = {}) = 0;

  /// Gradients of all parameters: undefined ones (the next backward pass makes new ones), or filled with zeros in
  /// place.
  void zero_grad(bool set_to_none = true);
  /// Those that are defined, in the order of the parameters.
  [[nodiscard]] std::vector<at::Tensor> gradients() const;

  [[nodiscard]] std::size_t groups() const noexcept { return groups_.size(); }
  /// Of one group. @throws UsageError  There is no such group.
  [[nodiscard]] std::span<const at::Tensor> parameters(std::size_t group) const;
  /// Of all groups, in order.
  [[nodiscard]] std::vector<at::Tensor> parameters() const;

  /// The learning rate itself: float32 [] on the device. Written in place, it takes effect with the next step or
  /// replay.
  [[nodiscard]] const at::Tensor& learning_rate(std::size_t group = 0) const;
  /// Fills it. Does not synchronize; in a captured step every replay fills it again.
  /// @throws UsageError  There is no such group, or the rate is negative or not finite.
  void set_learning_rate(double rate, std::size_t group);
  /// Of all groups.
  void set_learning_rate(double rate);

  /// Every tensor that a step writes or that a schedule does, parameters excepted: what a checkpoint, verify() and a
  /// test compare. Names as "state.3.exp_avg", "group.0.lr". Write them in place: graphs do not see that one of them has
  /// other memory.
  [[nodiscard]] virtual std::vector<NamedTensor> state() const = 0;

  /// In the layout of torch.optim's state_dict() with fused=True and capturable=True: {"state": {index: {...}},
  /// "param_groups": [{...}]}. Tensors are the optimizer's own, not copies. A parameter that never had a gradient has
  /// an entry, too, as new.
  [[nodiscard]] virtual c10::IValue state_dict() const = 0;
  /// Copies into the existing tensors, so that captured graphs continue with what is loaded. Also accepts what torch.optim's
  /// optimizers of that name save, fused or not, with a learning rate that is a tensor or a number. A parameter without
  /// an entry starts anew.
  ///
  /// @throws UsageError  Of another optimizer, of other groups, options or shapes, or values are missing or have no
  ///                     meaning here; nothing was changed.
  virtual void load_state_dict(const c10::IValue& state) = 0;

 protected:
  struct Group {
    std::vector<at::Tensor> parameters;
    at::Tensor learning_rate;
  };
  Optimizer() = default;
  /// @throws UsageError  No parameter at all, one that is no leaf, of a dtype or device that fused kernels do not know,
  ///                     listed twice, or of another device than the first; a learning rate that is negative or not
  ///                     finite.
  void add_group(std::vector<at::Tensor> parameters, double learning_rate);
  /// @throws UsageError  There is no such group.
  [[nodiscard]] const Group& group(std::size_t index) const;
  /// @throws UsageError  Not one float32 element each on the parameters' device.
  void check(const GradScale& scale) const;

 private:
  std::vector<Group> groups_;
};

}  // namespace pianola

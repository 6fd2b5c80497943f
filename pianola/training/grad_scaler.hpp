#pragma once
#include <pianola/core/export.hpp>
#include <pianola/graph/options.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace pianola {

class Optimizer;

/// Those of torch.amp.GradScaler. All are numbers of the host, which a captured update() freezes.
struct GradScalerOptions {
  double init_scale = 65536;    ///< Above 0.
  double growth_factor = 2;     ///< Above 1: by which the scale grows after `growth_interval` good steps in a row.
  double backoff_factor = 0.5;  ///< Between 0 and 1: by which it shrinks after a step with infinite gradients.
  std::int64_t growth_interval = 2000;  ///< 1 or more.
  bool enabled = true;  ///< Off: scale() returns its argument, step() is the optimizer's, the rest nothing.
};

/// Scales losses so that small gradients survive float16, and skips steps whose gradients overflowed:
/// torch.amp.GradScaler with nothing of it on the host. Scale, growth and the skipping itself are decided on the
/// device, so that the whole step can be captured, and replays go on adapting the scale.
///
///     optimizer.zero_grad();
///     scaler.scale(loss).backward();
///     scaler.unscale_(optimizer);            // only if gradients are read or clipped
///     pianola::clip_grad_norm_(optimizer, 1.0);
///     scaler.step(optimizer);
///     scaler.update();
///
/// Scale, growth tracker and parameters are equal bit for bit to torch's with fused optimizers.
///
/// The host remembers which optimizers were unscaled and stepped since the last update(): capture the calls from
/// unscale_() to update() together. An exception in between needs abandon_step() before the next step, unless it ended
/// the capture that the step was in.
///
/// Streams:  The current one of the device. Nothing synchronizes, but state_dict().
/// Threads:  One call at a time per object.
class PIANOLA_API GradScaler {
 public:
  /// @throws UsageError   An option is out of range.
  /// @throws DeviceError, UnsupportedError  As Graph: there is no such device, or no backend for it.
  explicit GradScaler(c10::Device device, const GradScalerOptions& options = {});
  GradScaler(const GradScaler&) = delete;
  GradScaler& operator=(const GradScaler&) = delete;
  GradScaler(GradScaler&&) noexcept = default;
  GradScaler& operator=(GradScaler&&) noexcept = default;
  ~GradScaler() = default;

  /// The loss times the scale. @throws UsageError  Undefined, not floating point, or on another device.
  [[nodiscard]] at::Tensor scale(const at::Tensor& loss) const;

  /// Divides the optimizer's gradients by the scale, in place, and notes whether one is NaN or infinite.
  /// @throws UsageError  Called before for this optimizer, or after step(); no gradient is defined, or one is sparse,
  ///                     float16 or on another device.
  void unscale_(Optimizer& optimizer);

  /// The optimizer's step; changes nothing if a gradient is not finite. Without unscale_() the optimizer divides by the
  /// scale itself.
  /// @throws UsageError  Called before since update(); as unscale_(), float16 excepted; unscale_() was captured and
  ///                     this call is not, or the other way round; or the optimizer's step() looks at
  ///                     GradScale::found_inf in no operation, so that nothing would be skipped. That is found out in
  ///                     its first step, which has changed the parameters then.
  void step(Optimizer& optimizer);

  /// Adapts the scale after all optimizers' steps, and counts a skipped one.
  /// @throws UsageError  No step since the last update(), one that unscale_() began and step() did not end, or one that
  ///                     was captured while this call is not.
  void update();
  /// Sets the scale instead; a number that a capture freezes. @throws UsageError  As update(), but no step is needed;
  /// or the scale is not above 0 and finite.
  void update(double new_scale);
  /// The same by value of a tensor: one floating-point element on the device, read by every replay.
  /// @throws UsageError  It is not that.
  void update(const at::Tensor& new_scale);

  /// Forgets what unscale_() and step() noted since the last update(), after an exception in between.
  void abandon_step() noexcept;

  [[nodiscard]] bool enabled() const noexcept { return options_.enabled; }
  /// As constructed or loaded.
  [[nodiscard]] const GradScalerOptions& options() const noexcept { return options_; }

  /// The scale itself: float32 [] on the device.
  [[nodiscard]] const at::Tensor& current_scale() const noexcept { return scale_; }
  /// Good steps in a row: int32 [] on the device, the tensor itself.
  [[nodiscard]] const at::Tensor& growth_tracker() const noexcept { return growth_tracker_; }
  /// How many steps were skipped so far: int64 [] on the device, a copy.
  [[nodiscard]] at::Tensor skipped_steps() const;
  /// Not 0 where the optimizer's gradients were not finite: float32 [] on the device, from unscale_() or step() to
  /// update(), for what has to be skipped along with the step. @throws UsageError  At any other time.
  [[nodiscard]] const at::Tensor& found_inf(const Optimizer& optimizer) const;

  /// Every tensor that a step writes: "scale", "growth_tracker", "skipped_steps" (float64 []).
  [[nodiscard]] std::vector<NamedTensor> state() const;

  /// torch.amp.GradScaler's: {"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"}; empty
  /// where not enabled. Waits for the device, to read scale and tracker.
  [[nodiscard]] c10::IValue state_dict() const;
  /// Fills the tensors that are there, so that graphs go on with what is loaded. Nothing where not enabled. Does not
  /// synchronize.
  /// @throws UsageError  Empty, values are missing or out of range, or a capture froze other factors; nothing was
  ///                     changed.
  void load_state_dict(const c10::IValue& state);

 private:
  enum class Stage : std::uint8_t { unscaled, stepped };
  struct Mark {
    const Optimizer* optimizer;
    Stage stage;
    bool captured;
    at::Tensor found_inf;
  };

  [[nodiscard]] Mark* find(const Optimizer& optimizer);
  void erase(const Optimizer& optimizer);
  void forget_other_context(const Optimizer& optimizer);
  [[nodiscard]] at::Tensor checked(const Optimizer& optimizer, const at::Tensor& inverse_scale, bool allow_half,
                                   const char* call) const;
  void step_watched(Optimizer& optimizer, bool unscaled, const at::Tensor& found_inf);
  void check_marks() const;
  [[nodiscard]] at::Tensor take_found_inf();

  c10::Device device_;
  GradScalerOptions options_;
  at::Tensor scale_;
  at::Tensor growth_tracker_;
  at::Tensor skipped_;   // float64: so that what was found is added as it is
  at::Tensor no_scale_;  // 1
  std::vector<Mark> marks_;
  std::vector<std::pair<const Optimizer*, bool>> known_;  // whose step() uses the GradScale, unscaled before or not
  bool frozen_ = false;                                   // a capture holds the factors
};

}  // namespace pianola

#pragma once
#include <pianola/core/export.hpp>
#include <pianola/graph/options.hpp>
#include <pianola/training/learning_rate.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <string>
#include <vector>

namespace pianola {

class Optimizer;  // <pianola/training/optimizer.hpp>

/// A schedule whose rates lie in a table on the device: the step counts on the device, too, so that it can be a part of
/// what is captured, and a replay moves on without the host. Rates have the bits that LearningRateSchedule writes.
/// After the last step of the table its last rate holds.
///
/// Streams:  The current one of the device. step() does not synchronize; steps(), state_dict() and load_state_dict()
///           do.
/// Threads:  One call at a time per object.
class PIANOLA_API DeviceLearningRateSchedule {
 public:
  /// Counts on, and writes the next rates.
  void step();
  /// How many steps were taken. Waits for the device.
  [[nodiscard]] std::int64_t steps() const;
  /// The counter: what a step writes besides the rates.
  [[nodiscard]] std::vector<NamedTensor> state() const;
  /// {"steps": n, "base_rates": [...]}, as LearningRateSchedule's.
  [[nodiscard]] c10::IValue state_dict() const;
  /// Writes the rates of the step that is loaded. @throws UsageError  It is no such state, its base rates are others,
  /// or its step lies behind the table; nothing was changed.
  void load_state_dict(const c10::IValue& state);

 private:
  friend class LearningRateSchedule;
  DeviceLearningRateSchedule() = default;

  void write();

  std::vector<at::Tensor> rates_;   // [1], those of the optimizer
  std::vector<at::Tensor> tables_;  // [steps + 1], for each of them
  at::Tensor counter_;              // int64 [1]
  std::vector<double> bases_;
};

/// Writes the rates of an optimizer's groups, step by step. The step is counted on the host, and the rate sent with a
/// fill: nothing waits. It belongs between replays; inside a capture it is refused, since the rate would be frozen
/// there.
///
/// Streams, threads:  As Optimizer.
class PIANOLA_API LearningRateSchedule {
 public:
  /// Writes the rates of step 0.
  /// @param base_rates  One for each group, or one for all; empty: what the groups have now, for which it waits.
  /// @throws UsageError  Another number of base rates, or one that is negative or not finite.
  LearningRateSchedule(const Optimizer& optimizer, LearningRate rate, std::vector<double> base_rates = {});
  /// Of any scalars on a device, such as AdamW::weight_decay(): each floating point, of one element.
  /// @throws UsageError  As above, or a tensor is none such, or there is none.
  LearningRateSchedule(std::vector<at::Tensor> scalars, LearningRate rate, std::vector<double> base_rates = {});

  /// Counts on, and writes the next rates. @throws UsageError  A capture is open on this thread; nothing was changed.
  void step();
  /// How many steps were taken.
  [[nodiscard]] std::int64_t steps() const noexcept { return steps_; }
  /// What was written last, unrounded: one for each group.
  [[nodiscard]] std::vector<double> rates() const;

  /// {"steps": n, "base_rates": [...]}.
  [[nodiscard]] c10::IValue state_dict() const;
  /// Writes the rates of the step that is loaded. @throws UsageError  It is no such state, or its base rates are
  /// others; nothing was changed.
  void load_state_dict(const c10::IValue& state);

  /// The same for capture, from this step on, with a table of the rates of steps 0 to `total_steps`.
  /// @throws UsageError  This schedule has passed `total_steps`.
  [[nodiscard]] DeviceLearningRateSchedule on_device(std::int64_t total_steps) const;

 private:
  void write() const;

  std::vector<at::Tensor> scalars_;
  LearningRate rate_;
  std::vector<double> bases_;
  std::int64_t steps_ = 0;
};

}  // namespace pianola

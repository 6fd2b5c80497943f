#pragma once
#include <pianola/core/export.hpp>

#include <cstdint>
#include <functional>

namespace pianola {

/// The shape of a one-cycle schedule: as the arguments of torch.optim.lr_scheduler.OneCycleLR with cosine annealing.
struct OneCycleOptions {
  double pct_start = 0.3;         ///< Part of the steps in which the rate rises.
  double div_factor = 25;         ///< Base rate (the highest) over the first rate.
  double final_div_factor = 1e4;  ///< First rate over the last.
};

/// A learning rate as a pure function of the step and of a group's base rate. Steps count from 0; the rate of step n is
/// what a schedule writes ahead of the (n + 1)th step of the optimizer. Each form gives, within its steps, the very
/// doubles of the closed form of torch.optim.lr_scheduler's class that is named with it, and holds its last rate after.
class PIANOLA_API LearningRate {
 public:
  using Function = std::function<double(std::int64_t step, double base)>;

  /// Of one's own. It should be cheap and depend on nothing else: it runs again for a table, and when state is loaded.
  /// @throws UsageError  It is empty.
  explicit LearningRate(Function function);

  /// The base rate.
  [[nodiscard]] static LearningRate constant();
  /// From `start` times the base rate to `end` times it, in `steps` steps (LinearLR).
  /// @throws UsageError  Fewer than 1 step, or a factor that is negative or not finite.
  [[nodiscard]] static LearningRate linear(std::int64_t steps, double start, double end);
  /// Half a cosine from the base rate down to `minimum`, in `steps` steps (CosineAnnealingLR).
  /// @throws UsageError  Fewer than 1 step, or a minimum that is negative or not finite.
  [[nodiscard]] static LearningRate cosine(std::int64_t steps, double minimum = 0);
  /// Up to the base rate and down to nearly nothing, in `steps` steps all in all (OneCycleLR).
  /// @throws UsageError  Fewer than 1 step, a part that is not between 0 and 1, or a factor that is not above 0.
  [[nodiscard]] static LearningRate one_cycle(std::int64_t steps, const OneCycleOptions& options = {});
  /// Times `gamma` after every `every` steps (StepLR).
  /// @throws UsageError  Fewer than 1 step, or a gamma that is negative or not finite.
  [[nodiscard]] static LearningRate step_decay(std::int64_t every, double gamma = 0.1);
  /// `first` for `steps` steps, then `second`, which counts from 0 there.
  /// @throws UsageError  Fewer than 0 steps.
  [[nodiscard]] static LearningRate sequence(LearningRate first, std::int64_t steps, LearningRate second);
  /// A linear rise from `start` times the base rate in `steps` steps, then `after`.
  /// @throws UsageError  As linear().
  [[nodiscard]] static LearningRate warmup(std::int64_t steps, LearningRate after, double start = 0);

  /// @throws UsageError  The step is negative.
  [[nodiscard]] double operator()(std::int64_t step, double base) const;

 private:
  Function function_;
};

}  // namespace pianola

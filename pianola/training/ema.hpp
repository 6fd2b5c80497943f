#pragma once
#include <pianola/core/export.hpp>
#include <pianola/graph/options.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <span>
#include <vector>

namespace pianola {

/// Exponential moving averages of parameters, in the bits of torch.optim.swa_utils.get_ema_multi_avg_fn(decay): each
/// update moves them by 1 - decay of the way to the parameters. They start as the parameters are at construction.
/// (torch's AveragedModel takes the parameters over at its first update instead: call reset() there for the same.)
///
/// Nothing in an update reads the host: it can be a part of what is captured.
///
/// Streams:  The current one of the parameters' device. Nothing synchronizes.
/// Threads:  One call at a time per object.
class PIANOLA_API ExponentialMovingAverage {
 public:
  /// @throws UsageError  No parameter, one that is not floating point, or a decay that is not between 0 and 1.
  explicit ExponentialMovingAverage(std::vector<at::Tensor> parameters, double decay = 0.999);

  /// Moves the averages towards the parameters.
  void update();
  /// Makes the averages the parameters as they are.
  void reset();
  /// Makes the parameters the averages.
  void copy_to_parameters();
  /// Exchanges both: once to evaluate with the averages, and once more to go on training.
  void swap();

  /// In the order of the parameters.
  [[nodiscard]] std::span<const at::Tensor> averages() const noexcept { return averages_; }
  /// What an update writes: "average.3".
  [[nodiscard]] std::vector<NamedTensor> state() const;
  /// {"decay": d, "averages": [...]}; the tensors are its own, not copies.
  [[nodiscard]] c10::IValue state_dict() const;
  /// Copies into the averages. @throws UsageError  It is no such state, of another decay, or of other shapes; nothing
  /// was changed.
  void load_state_dict(const c10::IValue& state);

 private:
  // Of one dtype: what one foreach operation takes.
  struct Lists {
    std::vector<at::Tensor> parameters, averages;
  };

  std::vector<at::Tensor> parameters_, averages_;
  std::vector<Lists> lists_;
  double decay_;
};

}  // namespace pianola

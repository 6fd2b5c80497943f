#pragma once
#include <pianola/training/optimizer.hpp>

namespace pianola {

namespace training {
struct GroupState;
}

/// As the arguments of torch.optim.Adam.
struct AdamOptions {
  double lr = 1e-3;         ///< Learning rate that the group starts with.
  double beta1 = 0.9;       ///< Decay of the average of gradients.
  double beta2 = 0.999;     ///< Decay of the average of their squares.
  double eps = 1e-8;        ///< Added to the denominator.
  double weight_decay = 0;  ///< Times the parameter, added to the gradient.
  bool amsgrad = false;     ///< Divides by the largest average of squares so far.
  bool maximize = false;    ///< Ascends.
};

/// As the arguments of torch.optim.AdamW.
struct AdamWOptions {
  double lr = 1e-3;            ///< Learning rate that the group starts with.
  double beta1 = 0.9;          ///< Decay of the average of gradients.
  double beta2 = 0.999;        ///< Decay of the average of their squares.
  double eps = 1e-8;           ///< Added to the denominator.
  double weight_decay = 0.01;  ///< Times the learning rate: the part that a parameter loses in each step.
  bool amsgrad = false;        ///< Divides by the largest average of squares so far.
  bool maximize = false;       ///< Ascends.
  /// Keep the weight decay on the device, where a schedule can write it (AdamW::weight_decay). Parameters are then
  /// multiplied by 1 - lr * weight_decay ahead of the fused operation, as torch's foreach form does, which differs in
  /// the last bits from what the fused kernel does with a frozen weight decay.
  bool scheduled_weight_decay = false;
};

/// What Adam and AdamW share.
class PIANOLA_API AdamBase : public Optimizer {
 public:
  ~AdamBase() override;

  void step(const GradScale& scale = {}) override;
  [[nodiscard]] std::vector<NamedTensor> state() const override;
  [[nodiscard]] c10::IValue state_dict() const override;
  void load_state_dict(const c10::IValue& state) override;

 protected:
  AdamBase(std::vector<ParameterGroup<AdamWOptions>> groups, bool decoupled);
  [[nodiscard]] const at::Tensor& scheduled_weight_decay(std::size_t group) const;

 private:
  struct GroupData;
  [[nodiscard]] std::vector<training::GroupState> group_states() const;
  void update(GroupData& group, const at::Tensor& rate, const GradScale& scale) const;

  std::vector<GroupData> data_;
  bool decoupled_;
};

/// Adam, with the weight decay as a part of the gradient.
class PIANOLA_API Adam : public AdamBase {
 public:
  /// @throws UsageError  As Optimizer says of its parameters; an option is negative or not finite, or a beta is not
  ///                     below 1.
  explicit Adam(std::vector<at::Tensor> parameters, const AdamOptions& options = {});
  explicit Adam(std::vector<ParameterGroup<AdamOptions>> groups);
};

/// Adam with decoupled weight decay.
class PIANOLA_API AdamW : public AdamBase {
 public:
  /// @throws UsageError  As Adam.
  explicit AdamW(std::vector<at::Tensor> parameters, const AdamWOptions& options = {});
  explicit AdamW(std::vector<ParameterGroup<AdamWOptions>> groups);

  /// The weight decay itself: float32 [] on the device, read by each step or replay. For LearningRateSchedule, too.
  /// @throws UsageError  There is no such group, or its `scheduled_weight_decay` is off.
  [[nodiscard]] const at::Tensor& weight_decay(std::size_t group = 0) const;
};

}  // namespace pianola

#pragma once
#include <pianola/training/optimizer.hpp>

namespace pianola {

namespace training {
struct GroupState;
}

/// As the arguments of torch.optim.SGD.
struct SGDOptions {
  double lr = 1e-3;         ///< Learning rate that the group starts with.
  double momentum = 0;      ///< Of the running sum of gradients; 0: there is none, and no state.
  double dampening = 0;     ///< What of a gradient does not enter the running sum, from the second step on.
  double weight_decay = 0;  ///< Times the parameter, added to the gradient.
  bool nesterov = false;    ///< Looks one step ahead; wants momentum, and no dampening.
  bool maximize = false;    ///< Ascends.
};

/// Stochastic gradient descent.
///
/// The first step of a momentum is told on the device, so that a captured one can be replayed: without dampening the
/// sum starts at -0, to which adding is exact; with dampening both forms of the step are launched, and all but one
/// return at once.
///
/// torch.optim.SGD with fused=True differs where its very first step was skipped for found_inf: its sums are
/// uninitialised memory then. And in float16 and bfloat16 on the CPU, where its kernel leaves most elements out: steps
/// are computed in float32 here and rounded once, as on CUDA.
class PIANOLA_API SGD : public Optimizer {
 public:
  /// @throws UsageError  As Optimizer says of its parameters; an option is negative or not finite; nesterov without
  ///                     momentum or with dampening.
  explicit SGD(std::vector<at::Tensor> parameters, const SGDOptions& options = {});
  explicit SGD(std::vector<ParameterGroup<SGDOptions>> groups);
  ~SGD() override;

  /// @throws UsageError  As Optimizer::step; with dampening, also where some parameters of a group and dtype have
  ///                     gradients and some have none: they do not share a first step then.
  void step(const GradScale& scale = {}) override;
  [[nodiscard]] std::vector<NamedTensor> state() const override;
  [[nodiscard]] c10::IValue state_dict() const override;
  void load_state_dict(const c10::IValue& state) override;

 private:
  struct GroupData;
  [[nodiscard]] std::vector<training::GroupState> group_states() const;

  std::vector<GroupData> data_;
};

}  // namespace pianola

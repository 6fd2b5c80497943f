#pragma once
#include <pianola/graph/options.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace pianola::training {

/// One kind of state: a tensor for each parameter of a group.
struct StateColumn {
  std::string name;
  std::vector<at::Tensor> tensors;
  double initial = 0;    ///< What it holds before the first step.
  bool counter = false;  ///< A single number, which may be saved as one.
};

/// One entry of a parameter group, as torch.optim names it.
struct GroupOption {
  enum class Kind {
    fixed,   ///< A number, a bool or a tuple of them that a capture freezes: what is loaded has to be equal.
    tensor,  ///< A scalar on the device, saved as such; a tensor or a number can be loaded.
    number,  ///< A scalar on the device, saved as a number.
    layout,  ///< Written for torch's sake, and not read.
  };
  std::string name;
  c10::IValue value = {};
  Kind kind = Kind::fixed;
  bool may_lack = false;  ///< Earlier releases of torch did not save it.
};

/// What is saved of a parameter group.
struct GroupState {
  std::vector<GroupOption> options;  ///< In torch's order.
  std::span<const StateColumn> columns;
  std::size_t parameters = 0;
};

/// A list for each column.
[[nodiscard]] std::vector<std::vector<at::Tensor>> tensors_of(std::span<const StateColumn> columns);

/// Adds "state.<number>.<column>" of a group whose first parameter has the number `first`.
void add_columns(std::vector<NamedTensor>& all, std::span<const StateColumn> columns, std::size_t first);

/// In the layout of torch.optim. An entry of a parameter that `saved(group, index)` denies is left out.
[[nodiscard]] c10::IValue write_state_dict(std::span<const GroupState> groups,
                                           const std::vector<std::vector<bool>>& saved);

/// What loading comes to, once everything has been read and found sound.
class LoadPlan {
 public:
  /// @param optimizer  Its name, for messages.
  /// @throws UsageError  As Optimizer::load_state_dict.
  LoadPlan(const std::string& optimizer, std::span<const GroupState> groups, const c10::IValue& state);

  /// Copies.
  void run() const;
  /// How many of these parameters of the group have an entry.
  [[nodiscard]] std::size_t found(std::size_t group, const std::vector<std::size_t>& indices) const;

 private:
  class Reader;

  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;  // to, from
  std::vector<std::pair<at::Tensor, double>> fills_;
  std::vector<std::vector<bool>> found_;  // of each group, by parameter
};

}  // namespace pianola::training

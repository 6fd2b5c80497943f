#pragma once
#include <pianola/core/error.hpp>
#include <pianola/trace/operation_log.hpp>

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace torch::autograd {
struct Node;
}  // namespace torch::autograd

namespace pianola::callable {

/// Whether a node is one of a function of Python's, or of the user's C++.
[[nodiscard]] bool is_custom(const torch::autograd::Node& node);

/// What the backward passes of autograd functions that are not torch's own do, when somebody runs them: those in the
/// history of a run's results, as far as the run made it. The backward passes of torch's own depend on nothing but tensors and what forward was given.
class CustomBackwards {
 public:
  CustomBackwards() = default;
  /// Watches from now on.
  CustomBackwards(std::span<const at::Tensor> inputs, const std::vector<at::Tensor>& results);

  /// The first thing that one of them did otherwise than that of an earlier run; nothing where they did the same, or have
  /// not run yet.
  [[nodiscard]] std::optional<Diagnosis> difference_from(const CustomBackwards& before) const;

 private:
  struct Watched;
  std::vector<std::shared_ptr<Watched>> nodes_;  // in the order in which they are found from the results
};

}  // namespace pianola::callable

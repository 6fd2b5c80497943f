#pragma once
#include <pianola/callable/graphed_info.hpp>
#include <pianola/callable/number_log.hpp>
#include <pianola/callable/observed_run.hpp>
#include <pianola/graph/outside_guard.hpp>

#include <ATen/core/Tensor.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace pianola::callable {

/// What a function did in one eager call: what its capture builds on. Keeps no tensor alive, so that those that the
/// function replaces are noticed.
class Observation {
 public:
  /// @param results  The tensors that it returned.
  Observation(ObservedRun run, std::span<const at::Tensor> inputs, const std::vector<at::Tensor>& results);

  [[nodiscard]] GraphedKind kind() const noexcept { return kind_; }
  /// Where the function computes.
  [[nodiscard]] c10::Device device() const noexcept { return device_; }
  /// Parameters that it read and that are still there.
  [[nodiscard]] std::vector<at::Tensor> leaves() const;
  /// Why no graph of it could be right, whatever happens; empty where one could.
  [[nodiscard]] const std::string& obstacle() const noexcept { return obstacle_; }
  /// That of the call before, whose numbers must be the same.
  void compare(const Observation& before);
  /// @throws UsageError  A number that the function gives to operations is another one now, under capture.
  void check_numbers(const NumberLog& now) const;

 private:
  GraphedKind kind_;
  c10::Device device_;
  std::vector<graph::WeakTensor> leaves_;
  std::string obstacle_;
  NumberLog numbers_;
};

}  // namespace pianola::callable

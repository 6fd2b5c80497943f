#pragma once
#include <pianola/callable/call.hpp>
#include <pianola/callable/custom_backwards.hpp>
#include <pianola/callable/eager_run.hpp>
#include <pianola/callable/graphed_info.hpp>
#include <pianola/callable/kept_tensors.hpp>
#include <pianola/core/error.hpp>
#include <pianola/graph/recurrent_dropout.hpp>
#include <pianola/trace/operation_log.hpp>
#include <pianola/trace/weak_tensor.hpp>

#include <ATen/core/Tensor.h>

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace pianola::callable {

/// The capture did otherwise than the call before it.
class OtherPath : public UsageError {
 public:
  using UsageError::UsageError;
};

/// What a function did in one eager call: what its capture builds on. Keeps no tensor alive, so that those that the
/// function replaces are noticed.
class Observation {
 public:
  /// @param results  The tensors that it returned.
  Observation(EagerRun run, const HostEffects& effects, std::span<const at::Tensor> inputs,
              const std::vector<at::Tensor>& results);

  [[nodiscard]] GraphedKind kind() const noexcept { return kind_; }
  /// Where the function computes.
  [[nodiscard]] c10::Device device() const noexcept { return device_; }
  /// Parameters that it read and that are still there.
  [[nodiscard]] std::vector<at::Tensor> leaves() const;

  /// Why no graph of it could be right, whatever happens; empty where one could.
  [[nodiscard]] const std::string& lasting() const noexcept { return lasting_; }
  /// Why none could be, if other calls do so too: a first call may make what later ones find.
  [[nodiscard]] const std::string& passing() const noexcept { return passing_; }
  /// What it did otherwise than the call before; empty where nothing.
  [[nodiscard]] std::string difference_from(const Observation& before) const;
  [[nodiscard]] const CustomBackwards& backwards() const noexcept { return backwards_; }
  [[nodiscard]] const graph::RecurrentDropout& dropout() const noexcept { return dropout_; }
  [[nodiscard]] KeptTensors take_kept() noexcept { return std::move(kept_); }

  /// @param any_path  Other operations are accepted; other numbers are not.
  /// @throws OtherPath  The capture did otherwise.
  void check_capture(const trace::OperationLog& capture, bool any_path) const;
  /// The same of backward passes; where the call's has not run yet, nothing is known.
  void check_captured_backwards(const CustomBackwards& capture, bool any_path) const;
  /// Frees what only messages need.
  void forget_places() { log_.forget_places(); }

 private:
  GraphedKind kind_;
  c10::Device device_;
  std::vector<trace::WeakTensor> leaves_;
  KeptTensors kept_;
  CustomBackwards backwards_;
  std::string lasting_;
  std::string passing_;
  graph::RecurrentDropout dropout_;
  trace::OperationLog log_;
};

}  // namespace pianola::callable

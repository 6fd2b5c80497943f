#pragma once
#include <pianola/callable/graph_bank.hpp>
#include <pianola/core/export.hpp>
#include <pianola/training/full_iteration_info.hpp>
#include <pianola/training/full_iteration_options.hpp>

#include <string>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace pianola::callable {
class StepGraph;
}

namespace pianola::training {

// Note [Memory of iterations]
// All graphs share one pool: an iteration needs its memory only while it runs, so that the largest signature decides how
// much there is. What outlives an iteration is its results, which the next one may overwrite, and gradients for an
// optimizer outside. A training iteration leaves p.grad as it made it, so that nobody looks at the gradients of an earlier
// one; but a validation iteration may run between backward and optimizer. So the captures of one stage reuse each
// other's memory, as long as the other stage has captured nothing; from then on, and in a pool that is shared with other
// graphs, each capture takes what no graph has used before.

/// The graphs of whole iterations, by stage and signature; what FullIteration is made of, in C++ and in Python.
///
/// Threads:  One call at a time; a second one at the same time is refused by a UsageError, and so is a reset() inside a call.
///           A caller whose functions need a lock of their own, such as Python's GIL, must not hold it.
class PIANOLA_API IterationBank {
 public:
  /// The tensors of one call.
  struct Inputs {
    std::span<const at::Tensor> copied = {};  ///< Wherever they are: a graph copies them into its own.
    std::span<const at::Tensor> fixed = {};   ///< The same memory in each call of this key: a graph reads it there.

    /// Those that make the signature.
    [[nodiscard]] std::span<const at::Tensor> described() const noexcept { return copied.empty() ? fixed : copied; }
  };

  /// Of a replay; its leaves are those of the last one.
  struct PIANOLA_API Result {
    std::shared_ptr<const void> structure;  ///< Capturable::structure of the capture that was replayed.
    std::shared_ptr<const callable::StepGraph> graph;
    std::span<const at::Tensor> inputs;

    /// The leaves are the same tensors at each replay of this structure, and may be kept with it.
    [[nodiscard]] bool is_static() const noexcept;
    [[nodiscard]] std::vector<at::Tensor> leaves() const;
  };

  /// @throws UsageError  An option is out of range.
  explicit IterationBank(FullIterationOptions options);
  IterationBank(const IterationBank&) = delete;
  IterationBank& operator=(const IterationBank&) = delete;
  ~IterationBank();

  /// Whether calls are part of a capture now, Pianola's or torch's, and have to run eagerly.
  [[nodiscard]] static bool is_inside_another(const Inputs& inputs);

  /// Runs one iteration: replays it, after capturing it where that is due, or runs it eagerly and returns nothing.
  ///
  /// @param key     The caller's number for what else of the call matters: other arguments, and their structure.
  /// @param inputs  Defined tensors; either all are copied, or all are fixed.
  /// @throws CaptureError, UsageError  The iteration cannot be captured, and FullIterationOptions::eager_fallback is off;
  ///                                   nothing was computed.
  /// Whatever run_eagerly() throws reaches the caller unchanged.
  [[nodiscard]] std::optional<Result> run(Stage stage, std::int64_t key, const Inputs& inputs,
                                          callable::BankCall& call);

  /// After each iteration, when its results are taken: calls FullIterationOptions::after_iteration.
  void follow(Stage stage) const;

  /// Whether the next run() of this call is going to capture it.
  [[nodiscard]] bool is_due(Stage stage, std::int64_t key, const Inputs& inputs);
  /// Captures a call that was never run, by what the runs of another key of the stage have shown; nothing where it has a
  /// graph. @throws CaptureError, UsageError  As run(); UsageError as well where no call of the stage was observed.
  void capture(Stage stage, std::int64_t key, const Inputs& inputs, callable::BankCall& call);

  /// Keeps iterations of this key with such inputs eager from now on. The next one reports the reason.
  /// @throws UsageError  With the reason, where FullIterationOptions::eager_fallback is off.
  void refuse(Stage stage, std::int64_t key, const Inputs& inputs, const std::string& reason);

  /// Forgets the stage's signatures and drops their graphs.
  void reset(Stage stage);
  [[nodiscard]] FullIterationInfo info() const;
  [[nodiscard]] const FullIterationOptions& options() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pianola::training

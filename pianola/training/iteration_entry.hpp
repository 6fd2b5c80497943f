#pragma once
#include <pianola/callable/call_signature.hpp>
#include <pianola/callable/graph_bank.hpp>
#include <pianola/callable/recaptures.hpp>
#include <pianola/callable/step_graph.hpp>
#include <pianola/callable/warm_up.hpp>
#include <pianola/graph/pool.hpp>
#include <pianola/training/full_iteration_info.hpp>
#include <pianola/training/full_iteration_options.hpp>
#include <pianola/training/iteration_bank.hpp>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

namespace pianola::training {

/// The life of one signature: warm-up iterations, which are observed; then a graph; or eager ones for good.
class IterationEntry {
 public:
  IterationEntry(callable::CallSignature signature, const FullIterationOptions& options);

  [[nodiscard]] const callable::CallSignature& signature() const noexcept { return signature_; }

  /// Drops a graph that can no longer be right.
  /// @throws UsageError  It was so too often, and FullIterationOptions::eager_fallback is off.
  void drop_stale();
  /// Whether the next thing to do is to capture, or to say why that cannot be.
  [[nodiscard]] bool is_due() const;
  /// Takes over what runs of another entry of the same step have shown, so that this one need not run before it is
  /// captured.
  void adopt(const IterationEntry& other);
  [[nodiscard]] bool is_observed() const noexcept { return warm_up_.has_last(); }
  [[nodiscard]] bool stays_eager() const noexcept { return is_eager_; }
  /// @return  Whether there is a graph now; not where the capture took another way than the first iteration, which is looked
  ///          at again. @throws whatever keeps the iteration from being captured; all is as before then.
  bool capture(const IterationBank::Inputs& inputs, callable::BankCall& call, const GraphPoolRef& pool);
  /// Where it computes; known once it was observed.
  [[nodiscard]] c10::Device device() const { return warm_up_.last().device(); }

  /// nullptr: the iteration is to run eagerly.
  [[nodiscard]] const std::shared_ptr<callable::StepGraph>& graph() const noexcept { return graph_; }
  [[nodiscard]] const std::shared_ptr<const void>& structure() const noexcept { return structure_; }
  void note_replay() noexcept { recaptures_.note_replay(); }

  /// What a reason has to add after a capture that threw.
  [[nodiscard]] std::string note_of_second_run() const;

  /// One eager run, observed where a capture is going to build on it.
  void run_eagerly(const IterationBank::Inputs& inputs, callable::BankCall& call);

  void stay_eager(std::string reason);
  /// Why it stays eager, the first time that it is asked; nothing otherwise.
  [[nodiscard]] std::optional<std::string> take_reason();
  [[nodiscard]] IterationInfo info(Stage stage) const;

 private:
  void count_recapture(const std::string& why);

  callable::CallSignature signature_;
  const FullIterationOptions& options_;
  callable::WarmUp warm_up_;
  std::shared_ptr<bool> has_run_ = std::make_shared<bool>(false);  // the step, in the latest capture
  std::shared_ptr<callable::StepGraph> graph_;
  std::shared_ptr<const void> structure_;
  std::string reason_;
  bool is_eager_ = false;
  bool reported_ = false;
  bool adopted_ = false;
  std::size_t eager_calls_ = 0;
  callable::Recaptures recaptures_;
};

}  // namespace pianola::training

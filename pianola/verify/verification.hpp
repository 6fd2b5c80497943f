#pragma once
#include <pianola/verify/narrow.hpp>
#include <pianola/verify/runner.hpp>
#include <pianola/verify/state.hpp>
#include <pianola/verify/verify.hpp>

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace pianola::verification {

/// One call of verify(), from the first step to the report.
///
/// Eager runs all its steps and leaves a record of each; everything is put back; the graphed side runs, and each of its
/// steps is compared with the record, until one differs.
class Verification {
 public:
  /// @throws UsageError  An entry of `state` or of `generators` cannot be used.
  Verification(const VerifyStep& eager, const VerifyStep& graphed, const std::vector<NamedTensor>& state,
               const VerifyOptions& options)
      : options_(options),
        state_(state, options.generators, copies_),
        runner_(eager, graphed, options, state_, copies_) {}

  VerifyReport run();

 private:
  void run_steps();
  void run_eager();
  /// Whether eager's first step gives the same again, while the host is as it found it.
  [[nodiscard]] bool first_step_repeats();
  void warm_up_graphed();
  void run_graphed();
  /// Fills what the graphed side's next step must write before it reads it.
  void poison();
  [[nodiscard]] bool compared_nothing() const;
  void finish();
  void note(std::string text) { report_.notes.push_back(std::move(text)); }

  const VerifyOptions& options_;
  Copies copies_;
  State state_;
  Runner runner_;
  VerifyReport report_;
  std::vector<StepRecord> records_;  // of eager
  ObservedStep first_;
  std::vector<at::Tensor> last_results_;  // of the graphed side, where a graph fills them anew
};

}  // namespace pianola::verification

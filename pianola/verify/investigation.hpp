#pragma once
#include <pianola/verify/compare.hpp>
#include <pianola/verify/narrow.hpp>
#include <pianola/verify/report.hpp>
#include <pianola/verify/runner.hpp>
#include <pianola/verify/trace_change.hpp>

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

namespace pianola::verification {

/// Finds out about a step whose tensors differ: whether eager repeats itself, in which order the tensors depend on each
/// other, and at which operation the difference starts. Fills the report.
class Investigation {
 public:
  /// @param records  What eager left behind each step.
  /// @param first    Its first step, as it was observed.
  Investigation(Runner& runner, const std::vector<StepRecord>& records, const ObservedStep& first, VerifyReport& report)
      : runner_(runner), records_(records), first_(first), report_(report) {}

  /// The graphed side's step differs from eager's.
  void of_graph(int step, Comparison comparison);
  /// Eager's step differs from what eager did before.
  void of_eager(int step, Comparison comparison, const ObservedStep& observed);

 private:
  /// What eager does when it comes to a step once more.
  struct Again {
    int step;  // that was reached: the first in which eager differs, else the last
    ObservedStep observed;
    Comparison comparison;    // with the records
    std::vector<Pair> pairs;  // as they were left
  };
  void look_into(int step);
  [[nodiscard]] Again repeat(int until, const ObserveOptions& options);
  void go_to(int step);
  [[nodiscard]] Comparison compare_with_record(int step, const Outcome& outcome) const;
  /// Whether `between` may have moved on what the first step reads from the host.
  [[nodiscard]] bool first_step_is_gone() const;

  void narrow_eager(int step);
  void narrow_graph(int step, const Again& eager, const std::string& name);
  [[nodiscard]] std::optional<DifferenceOrigin> origin_by_capture(const Again& eager, const at::Tensor& tensor,
                                                                  std::string& why_not);
  [[nodiscard]] std::vector<TraceChange> changes_since_first(const Again& eager) const;
  void note_random_operators();
  void note_first_writer(const ObservedStep& observed, const std::string& name);
  void note(std::string text) { report_.notes.push_back(std::move(text)); }

  Runner& runner_;
  const std::vector<StepRecord>& records_;
  const ObservedStep& first_;
  VerifyReport& report_;
};

}  // namespace pianola::verification

#pragma once
#include <pianola/core/export.hpp>
#include <pianola/core/hazard_rule.hpp>
#include <pianola/core/source_place.hpp>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace pianola {

/// One hazard at one place.
struct Finding {
  const HazardRule* rule = nullptr;  ///< Never nullptr in a report.
  Severity severity = Severity::style;
  std::string op = {};        ///< As the user called it: "aten::item"; empty where no operation shows it.
  std::string module = {};    ///< "encoder.layers.3"; empty where it is not known.
  SourcePlace place = {};     ///< The user's line; unknown where there is none.
  std::string what = {};      ///< What happened here, one sentence without a full stop.
  std::string evidence = {};  ///< What was seen: the two values, addresses, shapes; may be empty.
  std::string fix = {};       ///< What to do here.
  int iteration = 0;          ///< In which it was seen first, from 1; 0: before or between.
  std::size_t times = 1;      ///< How often, all iterations together.

  /// Of a rule, with its severity and remedy. @throws UsageError  There is no such rule.
  [[nodiscard]] PIANOLA_API static Finding of(std::string_view rule);
};

/// Where the host waits for what the step has computed: a graph of it ends there, and the next one begins behind.
struct AuditCut {
  std::string op = {};     ///< As the user called it: "aten::item".
  SourcePlace place = {};  ///< The user's line; unknown where there is none.
  std::size_t before = 0;  ///< Operations from the cut before it, or from the begin of the step.
};

/// What an audit found: all hazards, worst first, each once.
class PIANOLA_API AuditReport {
 public:
  /// Findings of one rule at one place, about the same operation, become one. Order of calls decides among equals.
  void add(Finding finding);
  /// What the audit could not see, and why: one sentence each.
  void add_note(std::string note);

  /// Worst first; of the same severity in the order in which they were added.
  [[nodiscard]] const std::vector<Finding>& findings() const noexcept { return findings_; }
  [[nodiscard]] const std::vector<std::string>& notes() const noexcept { return notes_; }
  /// Empty: nothing was found.
  [[nodiscard]] std::optional<Severity> worst() const noexcept;
  /// Whether a capture would work and compute the same: nothing that breaks it, no wrong numbers.
  [[nodiscard]] bool ok() const noexcept;

  /// For people, in UTF-8, with a line break at the end.
  [[nodiscard]] std::string to_text() const;
  /// One JSON object.
  [[nodiscard]] std::string to_json(int indent = 2) const;
  /// SARIF 2.1.0, which editors and code hosts show at the lines.
  [[nodiscard]] std::string to_sarif() const;
  /// For programs: 0 where ok(), 3 otherwise.
  [[nodiscard]] int exit_code() const noexcept { return ok() ? 0 : 3; }

  std::string subject = {};         ///< What was audited: a name for the heading.
  std::string device = {};          ///< Where the step computes: "cuda:0".
  int iterations = 0;               ///< That were observed.
  std::size_t operations = 0;       ///< Of the last one.
  std::vector<AuditCut> cuts = {};  ///< Of the last one, in order.

 private:
  std::vector<Finding> findings_;
  std::vector<std::string> notes_;
};

}  // namespace pianola

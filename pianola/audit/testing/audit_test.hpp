#pragma once
#include <pianola/audit/audit.hpp>
#include <pianola/graph/testing/mlp.hpp>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pianola::testing {

/// Without PG1204, which is measured: another process may keep the device busy meanwhile.
inline std::vector<Finding> lasting_findings(const AuditReport& report) {
  std::vector<Finding> findings(report.findings().begin(), report.findings().end());
  std::erase_if(findings, [](const Finding& finding) { return finding.rule->id == "PG1204"; });
  return findings;
}

/// The rules of them, each once, sorted: "PG101 PG301"; empty: no hazard.
inline std::string rules_of(const AuditReport& report) {
  std::set<std::string> rules;
  for (const Finding& finding : lasting_findings(report)) rules.insert(std::string(finding.rule->id));
  std::string text;
  for (const std::string& rule : rules) text += (text.empty() ? "" : " ") + rule;
  return text;
}

/// The first finding of a rule; a failure, and an empty finding, where there is none.
inline Finding finding_of(const AuditReport& report, std::string_view rule) {
  for (const Finding& finding : report.findings()) {
    if (finding.rule->id == rule) return finding;
  }
  ADD_FAILURE() << "no finding of " << rule << " in\n" << report.to_text();
  return Finding::of(rule);
}

/// "host_reads_test.cpp:41"
inline std::string line_of(const Finding& finding) {
  return std::filesystem::path(finding.place.file).filename().string() + ":" + std::to_string(finding.place.line);
}

/// Exactly these rules. The report is what a failure shows.
#define EXPECT_RULES(report, rules) EXPECT_EQ(::pianola::testing::rules_of(report), rules) << (report).to_text()

class AuditTest : public DeviceTest {
 protected:
  /// Two parameters, fed by hand.
  [[nodiscard]] static at::Tensor parameter(at::IntArrayRef sizes, std::uint64_t seed) {
    return (randn(sizes, seed) * 0.3).requires_grad_();
  }
};

}  // namespace pianola::testing

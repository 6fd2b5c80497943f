#include <pianola/audit/report.hpp>

#include <algorithm>
#include <utility>

namespace pianola {
namespace {

// Without a line, two findings of a rule are one only where they say the same.
bool same_finding(const Finding& a, const Finding& b) {
  if (a.rule != b.rule || a.op != b.op || a.place != b.place) return false;
  return a.place.known() || (a.module == b.module && a.what == b.what);
}

void merge(Finding& into, Finding&& other) {
  constexpr std::size_t kLong = 400;
  const bool says_more = into.what != other.what && into.evidence.find(other.what) == std::string::npos;
  if (says_more && into.evidence.size() < kLong) {
    into.evidence += (into.evidence.empty() ? "also: " : "; also: ") + std::move(other.what);
  }
  into.times += other.times;
  into.severity = std::min(into.severity, other.severity);
  if (other.iteration > 0 && (into.iteration == 0 || other.iteration < into.iteration))
    into.iteration = other.iteration;
}

}  // namespace

Finding Finding::of(std::string_view rule) {
  const HazardRule& found = hazard_rule(rule);
  Finding finding;
  finding.rule = &found;
  finding.severity = found.severity;
  finding.what = std::string(found.title);
  finding.fix = std::string(found.fix);
  return finding;
}

void AuditReport::add(Finding finding) {
  const auto known = std::find_if(findings_.begin(), findings_.end(),
                                  [&](const Finding& candidate) { return same_finding(candidate, finding); });
  known == findings_.end() ? findings_.push_back(std::move(finding)) : merge(*known, std::move(finding));
  std::stable_sort(findings_.begin(), findings_.end(),
                   [](const Finding& a, const Finding& b) { return a.severity < b.severity; });
}

void AuditReport::add_note(std::string note) {
  if (std::find(notes_.begin(), notes_.end(), note) == notes_.end()) notes_.push_back(std::move(note));
}

std::optional<Severity> AuditReport::worst() const noexcept {
  if (findings_.empty()) return std::nullopt;
  return findings_.front().severity;
}

bool AuditReport::ok() const noexcept {
  return findings_.empty() || findings_.front().severity > Severity::wrong_numbers;
}

}  // namespace pianola

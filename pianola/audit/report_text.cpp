#include <pianola/audit/report.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

namespace pianola {
namespace {

constexpr std::size_t kWidth = 100;

// At spaces and line breaks; a word that is longer than a line stands alone.
std::string wrapped(std::string_view text, std::size_t indent) {
  std::string result;
  std::size_t column = indent;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find_first_of(" \n"), text.size());
    const std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (word.empty()) continue;
    if (column > indent && column + 1 + word.size() > kWidth) {
      result += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (column > indent) {
      result += ' ';
      ++column;
    }
    result += word;
    column += word.size();
  }
  return result;
}

// "3 hazards: 1 breaks capture, 2 wrong numbers"
std::string verdict(const AuditReport& report) {
  constexpr std::array kAll = {Severity::breaks_capture, Severity::wrong_numbers, Severity::memory,
                               Severity::performance, Severity::style};
  const auto& findings = report.findings();
  if (findings.empty()) return "no hazards";
  std::string parts;
  for (const Severity severity : kAll) {
    const auto count = std::count_if(findings.begin(), findings.end(),
                                     [&](const Finding& finding) { return finding.severity == severity; });
    if (count > 0) parts += fmt::format("{}{} {}", parts.empty() ? "" : ", ", count, in_words(severity));
  }
  return fmt::format("{} {}: {}", findings.size(), findings.size() == 1 ? "hazard" : "hazards", parts);
}

// Editors and terminals make a link of "file:line".
std::string place_line(const Finding& finding) {
  std::string text = finding.place.file;
  if (!text.empty() && finding.place.line > 0) text += fmt::format(":{}", finding.place.line);
  if (!finding.place.function.empty()) {
    text = text.empty() ? finding.place.function : fmt::format("{} in {}", text, finding.place.function);
  }
  if (!finding.module.empty()) text += (text.empty() ? "module " : ", module ") + finding.module;
  return text;
}

std::string place_words(const SourcePlace& place) {
  if (place.file.empty()) return place.function;
  return place.line > 0 ? fmt::format("{}:{}", place.file, place.line) : place.file;
}

// "3 graphs as it is, of 120, 45 and 60 operations, cut by aten::item at train.py:12": empty where it is one, or none.
std::string pieces_line(const AuditReport& report) {
  constexpr std::size_t kMost = 4;
  std::vector<std::size_t> sizes;
  std::size_t behind = report.operations;
  for (const AuditCut& cut : report.cuts) {
    if (cut.before > 0) sizes.push_back(cut.before);
    behind -= cut.before + 1;
  }
  if (behind > 0) sizes.push_back(behind);
  if (sizes.size() < 2) return "";
  std::vector<std::string> places;
  for (const AuditCut& cut : report.cuts) {
    const std::string where = place_words(cut.place);
    std::string one = where.empty() ? cut.op : fmt::format("{} at {}", cut.op, where);
    if (std::find(places.begin(), places.end(), one) == places.end()) places.push_back(std::move(one));
  }
  const std::string more = places.size() > kMost ? fmt::format(", and at {} other places", places.size() - kMost) : "";
  places.resize(std::min(places.size(), kMost));
  const std::size_t graphs = sizes.size();
  const std::string last = graphs > 2 * kMost ? "..." : fmt::format("and {}", sizes.back());
  sizes.resize(std::min(graphs - 1, 2 * kMost));
  return fmt::format("{} graphs as it is, of {} {} operations, cut by {}{}", graphs, fmt::join(sizes, ", "), last,
                     fmt::join(places, "; "), more);
}

std::string seen_line(const Finding& finding) {
  std::string text = finding.evidence;
  if (finding.times > 1) text += fmt::format("{}{} times in all", text.empty() ? "" : "; ", finding.times);
  return text;
}

std::string entry(const Finding& finding, std::size_t number) {
  constexpr std::size_t kIndent = 10;
  std::string text =
      fmt::format("{:>3}. {} [{} {}]\n", number, in_words(finding.severity), finding.rule->id, finding.rule->kind);
  const auto line = [&](std::string_view label, const std::string& content) {
    if (!content.empty()) text += fmt::format("     {:<5}{}\n", label, wrapped(content, kIndent));
  };
  text += fmt::format("     {}\n", wrapped(finding.what, 5));
  line("at", place_line(finding));
  line("seen", seen_line(finding));
  line("why", std::string(finding.rule->why));
  line("fix", finding.fix);
  return text;
}

}  // namespace

std::string AuditReport::to_text() const {
  std::string text = fmt::format("audit of {}: {}\n", subject.empty() ? "step" : subject, verdict(*this));
  if (iterations > 0) {
    text += fmt::format("{} {} of {} {} on {}\n", iterations, iterations == 1 ? "iteration" : "iterations", operations,
                        operations == 1 ? "operation" : "operations", device);
  }
  for (std::size_t i = 0; i < findings_.size(); ++i) text += "\n" + entry(findings_[i], i + 1);
  const std::string pieces = pieces_line(*this);
  if (!pieces.empty()) text += "\n" + wrapped(pieces, 0) + "\n";
  if (!notes_.empty()) text += "\n";
  for (const std::string& note : notes_) text += fmt::format("note: {}\n", wrapped(note, 6));
  return text;
}

}  // namespace pianola

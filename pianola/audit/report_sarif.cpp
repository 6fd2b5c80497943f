#include <pianola/audit/report.hpp>

#include <pianola/core/version.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cctype>

namespace pianola {
namespace {

using Json = nlohmann::ordered_json;  // keys stand in the order of adding

// What a graph computes wrong is as bad as what it cannot record.
const char* level_of(Severity severity) {
  switch (severity) {
    case Severity::breaks_capture:
    case Severity::wrong_numbers:
      return "error";
    case Severity::memory:
    case Severity::performance:
      return "warning";
    case Severity::style:
      break;
  }
  return "note";
}

// "/home/me/a b.py" as "file:///home/me/a%20b.py"; a relative path stays relative.
std::string uri_of(const std::string& file) {
  static constexpr std::string_view kPlain = "/-_.~:";
  static constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string uri = file.starts_with('/') ? "file://" : "";
  for (const char c : file) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) != 0 || kPlain.find(c) != std::string_view::npos) {
      uri += c;
    } else {
      uri += {'%', kDigits[byte >> 4U], kDigits[byte & 15U]};
    }
  }
  return uri;
}

Json rule_of(const HazardRule& rule) {
  return {{"id", rule.id},
          {"name", rule.kind},
          {"shortDescription", {{"text", rule.title}}},
          {"fullDescription", {{"text", rule.why}}},
          {"help", {{"text", rule.fix}}},
          {"defaultConfiguration", {{"level", level_of(rule.severity)}}}};
}

Json location_of(const Finding& finding) {
  Json location = Json::object();
  if (!finding.place.file.empty()) {
    Json physical = {{"artifactLocation", {{"uri", uri_of(finding.place.file)}}}};
    if (finding.place.line > 0) physical["region"] = {{"startLine", finding.place.line}};
    location["physicalLocation"] = std::move(physical);
  }
  Json logical = Json::array();
  if (!finding.place.function.empty()) logical.push_back({{"name", finding.place.function}, {"kind", "function"}});
  if (!finding.module.empty()) logical.push_back({{"fullyQualifiedName", finding.module}, {"kind", "module"}});
  if (!logical.empty()) location["logicalLocations"] = std::move(logical);
  return location;
}

Json result_of(const Finding& finding, std::size_t rule_index) {
  std::string message = finding.what + ".";
  if (!finding.evidence.empty()) message += " Seen: " + finding.evidence + ".";
  if (!finding.fix.empty()) message += " Fix: " + finding.fix + ".";
  Json result = {{"ruleId", finding.rule->id},
                 {"ruleIndex", rule_index},
                 {"level", level_of(finding.severity)},
                 {"message", {{"text", std::move(message)}}}};
  if (Json location = location_of(finding); !location.empty()) result["locations"] = Json::array({std::move(location)});
  result["occurrenceCount"] = finding.times;
  result["properties"] = {{"severity", in_words(finding.severity)}, {"op", finding.op}};
  return result;
}

}  // namespace

std::string AuditReport::to_sarif() const {
  std::vector<const HazardRule*> used;
  Json results = Json::array();
  for (const Finding& finding : findings_) {
    const auto known = std::find(used.begin(), used.end(), finding.rule);
    results.push_back(result_of(finding, static_cast<std::size_t>(known - used.begin())));
    if (known == used.end()) used.push_back(finding.rule);
  }
  Json rules = Json::array();
  for (const HazardRule* rule : used) rules.push_back(rule_of(*rule));
  Json notifications = Json::array();
  for (const std::string& note : notes_) notifications.push_back({{"level", "note"}, {"message", {{"text", note}}}});
  const Json driver = {{"name", "pianola"}, {"version", version()}, {"rules", std::move(rules)}};
  const Json invocation = {{"executionSuccessful", true}, {"toolExecutionNotifications", std::move(notifications)}};
  const Json run = {{"tool", {{"driver", driver}}},
                    {"invocations", Json::array({invocation})},
                    {"results", std::move(results)},
                    {"properties", {{"subject", subject}, {"device", device}}}};
  const Json sarif = {
      {"$schema", "https://json.schemastore.org/sarif-2.1.0.json"}, {"version", "2.1.0"}, {"runs", Json::array({run})}};
  return sarif.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace pianola

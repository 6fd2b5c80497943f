#include <pianola/audit/report.hpp>

#include <nlohmann/json.hpp>

namespace pianola {
namespace {

using Json = nlohmann::ordered_json;  // keys stand in the order of adding

Json json_of(const SourcePlace& place) {
  if (!place.known()) return nullptr;
  return {{"function", place.function}, {"file", place.file}, {"line", place.line}};
}

Json json_of(const Finding& finding) {
  return {{"rule", finding.rule->id}, {"kind", finding.rule->kind},     {"severity", in_words(finding.severity)},
          {"op", finding.op},         {"module", finding.module},       {"place", json_of(finding.place)},
          {"what", finding.what},     {"why", finding.rule->why},       {"evidence", finding.evidence},
          {"fix", finding.fix},       {"iteration", finding.iteration}, {"times", finding.times}};
}

}  // namespace

std::string AuditReport::to_json(int indent) const {
  Json findings = Json::array();
  for (const Finding& finding : findings_) findings.push_back(json_of(finding));
  Json pieces = Json::array();
  for (const AuditCut& cut : cuts) {
    pieces.push_back({{"op", cut.op}, {"place", json_of(cut.place)}, {"operations_before", cut.before}});
  }
  const auto worst_found = worst();
  const Json report = {{"subject", subject},
                       {"device", device},
                       {"iterations", iterations},
                       {"operations", operations},
                       {"ok", ok()},
                       {"worst", worst_found ? Json(in_words(*worst_found)) : Json(nullptr)},
                       {"findings", std::move(findings)},
                       {"cuts", std::move(pieces)},
                       {"notes", notes_}};
  return report.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace pianola

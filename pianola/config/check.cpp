#include <pianola/config/check.hpp>

#include <pianola/config/field.hpp>
#include <pianola/config/json.hpp>
#include <pianola/core/error.hpp>
#include <pianola/core/nearest_name.hpp>
#include <pianola/core/plural.hpp>
#include <pianola/core/report.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace pianola {
namespace {

constexpr std::array kOutcomes = {ConfigOutcome::error, ConfigOutcome::fixed, ConfigOutcome::warning};

// Texts of one word stand without their quotes in sentences.
std::string in_a_sentence(const ConfigValue& value) {
  const auto* text = std::get_if<std::string>(&value);
  return text && !text->empty() && text->find(' ') == std::string::npos ? *text : written_out(value);
}

// `{name}` is the value of that member.
std::string filled_in(std::string_view message, const CudaGraphConfig& config) {
  std::string result;
  while (!message.empty()) {
    const std::size_t open = std::min(message.find('{'), message.size());
    result += message.substr(0, open);
    message.remove_prefix(open);
    if (message.empty()) break;
    const std::size_t close = message.find('}');
    result += in_a_sentence(config_field(message.substr(1, close - 1)).get(config));
    message.remove_prefix(close + 1);
  }
  return result;
}

std::vector<ConfigChange> changes_between(const CudaGraphConfig& before, const CudaGraphConfig& after) {
  std::vector<ConfigChange> changes;
  for (const ConfigField& field : config_fields()) {
    const ConfigValue from = field.get(before), to = field.get(after);
    if (from != to) changes.push_back({.key = field.path(), .from = written_out(from), .to = written_out(to)});
  }
  return changes;
}

void fix_what_can_be(ConfigReport& report) {
  for (const ConfigRule& rule : config_rules()) {
    if (rule.fix == nullptr || !rule.applies_to(report.config)) continue;
    const CudaGraphConfig before = report.config;
    rule.fix(report.config);
    report.findings.push_back(
        {.rule = &rule, .message = filled_in(rule.message, before), .changes = changes_between(before, report.config)});
  }
}

void find_the_rest(ConfigReport& report) {
  for (const ConfigRule& rule : config_rules()) {
    if (rule.fix != nullptr || !rule.applies_to(report.config)) continue;
    report.findings.push_back({.rule = &rule, .message = filled_in(rule.message, report.config)});
  }
}

// "2 errors, 1 fixed, 3 warnings"
std::string verdict(const ConfigReport& report) {
  const std::size_t errors = report.count(ConfigOutcome::error), warnings = report.count(ConfigOutcome::warning);
  return fmt::format("{}: {} error{}, {} fixed, {} warning{}", report.ok() ? "valid" : "not valid", errors,
                     plural(errors), report.count(ConfigOutcome::fixed), warnings, plural(warnings));
}

std::string text_of(const ConfigFinding& finding) {
  std::string text = fmt::format("  {} {}: {}\n", finding.rule->id, in_words(finding.rule->outcome), finding.message);
  for (const ConfigChange& change : finding.changes) {
    text += fmt::format("    fixed: {}: {} -> {}\n", change.key, change.from, change.to);
  }
  if (finding.changes.empty()) text += fmt::format("    to do: {}\n", finding.rule->advice);
  return text + fmt::format("    why:   {}\n", finding.rule->reason);
}

// What was said or fixed; all else is as by default.
ReportTable table_of(const CudaGraphConfig& config) {
  const CudaGraphConfig defaults;
  ReportTable table("configuration", "Resulting configuration", {{"key"}, {"value"}});
  for (const ConfigField& field : config_fields()) {
    const ConfigValue value = field.get(config);
    if (field.name == "target" || value != field.get(defaults)) table.row({field.path(), written_out(value)});
  }
  return table;
}

ConfigJson json_of(const ConfigFinding& finding) {
  ConfigJson changes = ConfigJson::array();
  for (const ConfigChange& change : finding.changes) {
    changes.push_back({{"key", change.key}, {"from", change.from}, {"to", change.to}});
  }
  const ConfigRule& rule = *finding.rule;
  return {{"rule", rule.id},
          {"outcome", in_words(rule.outcome)},
          {"title", rule.title},
          {"message", finding.message},
          {"advice", rule.advice},
          {"reason", rule.reason},
          {"changes", std::move(changes)}};
}

}  // namespace

std::size_t ConfigReport::count(ConfigOutcome outcome) const noexcept {
  return static_cast<std::size_t>(std::count_if(findings.begin(), findings.end(), [&](const ConfigFinding& finding) {
    return finding.rule->outcome == outcome;
  }));
}

std::string ConfigReport::to_text() const {
  std::string text = fmt::format("Configuration for {}: {}\n\n", in_words(config.target), verdict(*this));
  for (const std::string& note : notes) text += fmt::format("  {}\n", note);
  if (!notes.empty()) text += "\n";
  for (const ConfigOutcome outcome : kOutcomes) {
    for (const ConfigFinding& finding : findings) {
      if (finding.rule->outcome == outcome) text += text_of(finding) + "\n";
    }
  }
  return text + Report().table(table_of(config)).to_text();
}

std::string ConfigReport::to_json(int indent) const {
  ConfigJson listed = ConfigJson::array();
  for (const ConfigFinding& finding : findings) listed.push_back(json_of(finding));
  const ConfigJson report = {{"target", in_words(config.target)},
                             {"ok", ok()},
                             {"errors", count(ConfigOutcome::error)},
                             {"fixed", count(ConfigOutcome::fixed)},
                             {"warnings", count(ConfigOutcome::warning)},
                             {"notes", notes},
                             {"findings", std::move(listed)},
                             {"configuration", pianola::json_of(config)}};
  return report.dump(indent, ' ', false, ConfigJson::error_handler_t::replace);
}

ConfigReport check_config(CudaGraphConfig config) {
  ConfigReport report{.config = std::move(config), .findings = {}, .notes = {}};
  fix_what_can_be(report);
  find_the_rest(report);
  return report;
}

void require_valid(const CudaGraphConfig& config) {
  const ConfigReport report = check_config(config);
  if (report.ok()) return;
  std::vector<std::string> messages, advice;
  for (const ConfigFinding& finding : report.findings) {
    if (finding.rule->outcome != ConfigOutcome::error) continue;
    messages.push_back(fmt::format("{}: {}", finding.rule->id, finding.message));
    advice.push_back(fmt::format("{}: {}", finding.rule->id, finding.rule->advice));
  }
  throw ConfigError({.what = fmt::format("the configuration has {} error{}{}", messages.size(), plural(messages.size()),
                                         listed(messages)),
                     .fix = fmt::format("{}", fmt::join(advice, "; "))});
}

}  // namespace pianola

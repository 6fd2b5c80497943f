#include <pianola/config/rule.hpp>

#include <pianola/config/table.hpp>
#include <pianola/core/error.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <vector>

namespace pianola {

std::string_view in_words(ConfigOutcome outcome) noexcept {
  switch (outcome) {
    case ConfigOutcome::error:
      return "error";
    case ConfigOutcome::fixed:
      return "fixed";
    case ConfigOutcome::warning:
      return "warning";
  }
  return "";
}

std::string_view in_words(ConfigTarget target) noexcept {
  switch (target) {
    case ConfigTarget::pianola:
      return "pianola";
    case ConfigTarget::megatron:
      return "megatron";
    case ConfigTarget::bridge:
      return "bridge";
  }
  return "";
}

std::span<const ConfigRule> config_rules() noexcept { return config_table(); }

const ConfigRule& config_rule(std::string_view id) {
  const auto rules = config_rules();
  const auto found = std::find_if(rules.begin(), rules.end(), [&](const ConfigRule& rule) { return rule.id == id; });
  if (found == rules.end()) {
    throw UsageError({.what = fmt::format("there is no configuration rule '{}'", id),
                      .fix = "rules are named CF101, CF102, ...; config_rules() and 'pianola config rules' list them"});
  }
  return *found;
}

std::string describe(const ConfigRule& rule) {
  std::vector<std::string_view> targets;
  for (const auto target : {ConfigTarget::pianola, ConfigTarget::megatron, ConfigTarget::bridge}) {
    if (rule.targets.contains(target)) targets.push_back(in_words(target));
  }
  return fmt::format("{} ({}): {}\n  says:    {}\n  {} {}\n  why:     {}\n  targets: {}\n", rule.id,
                     in_words(rule.outcome), rule.title, rule.message,
                     rule.outcome == ConfigOutcome::fixed ? "fix:    " : "to do:  ", rule.advice, rule.reason,
                     fmt::join(targets, ", "));
}

}  // namespace pianola

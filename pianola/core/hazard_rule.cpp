#include <pianola/core/hazard_rule.hpp>

#include <pianola/core/error.hpp>
#include <pianola/core/hazard_table.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace pianola {

std::string_view in_words(Severity severity) noexcept {
  switch (severity) {
    case Severity::breaks_capture:
      return "breaks capture";
    case Severity::wrong_numbers:
      return "wrong numbers";
    case Severity::memory:
      return "memory";
    case Severity::performance:
      return "performance";
    case Severity::style:
      return "style";
  }
  return "";
}

std::span<const HazardRule> hazard_rules() noexcept { return hazard_table(); }

const HazardRule& hazard_rule(std::string_view id) {
  const auto rules = hazard_rules();
  const auto found = std::find_if(rules.begin(), rules.end(),
                                  [&](const HazardRule& rule) { return rule.id == id || rule.kind == id; });
  if (found == rules.end()) {
    throw UsageError({.what = fmt::format("there is no hazard rule '{}'", id),
                      .fix = "rules are named PG101, PG102, ..., or by their kind; hazard_rules() lists them"});
  }
  return *found;
}

}  // namespace pianola

#pragma once
#include <pianola/config/cuda_graph_config.hpp>
#include <pianola/core/export.hpp>

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

namespace pianola {

/// What becomes of a configuration that a rule is about, worst first.
enum class ConfigOutcome {
  error,    ///< It cannot be used.
  fixed,    ///< It is changed, and can be used then.
  warning,  ///< It can be used, but does not do what it seems to, or may not fit.
};

/// "error"
[[nodiscard]] PIANOLA_API std::string_view in_words(ConfigOutcome outcome) noexcept;
/// "pianola", as in files.
[[nodiscard]] PIANOLA_API std::string_view in_words(ConfigTarget target) noexcept;

/// A set of targets.
class ConfigTargets {
 public:
  constexpr ConfigTargets(std::initializer_list<ConfigTarget> targets) {
    for (const ConfigTarget target : targets) bits_ |= bit(target);
  }
  [[nodiscard]] constexpr bool contains(ConfigTarget target) const noexcept { return (bits_ & bit(target)) != 0; }

 private:
  static constexpr unsigned bit(ConfigTarget target) { return 1U << static_cast<unsigned>(target); }
  unsigned bits_ = 0;
};

/// One rule about configurations. check_config() applies them; docs/reference/configuration.md lists them.
struct ConfigRule {
  std::string_view id;       ///< "CF101": stays the same for ever, and is never given to another rule.
  ConfigOutcome outcome;     ///< What becomes of a configuration that violates it.
  std::string_view title;    ///< The condition in words: "per-layer graphs with full recomputation".
  std::string_view message;  ///< What is said about a configuration; `{name}` stands for the value of that member.
  std::string_view advice;   ///< What to set; of a fixed one: what was set.
  std::string_view reason;   ///< Why, one sentence or two.
  ConfigTargets targets;     ///< For whose graphs it holds.
  bool (*violated)(const CudaGraphConfig& config);  ///< Whatever the target.
  void (*fix)(CudaGraphConfig& config) = nullptr;   ///< Of ConfigOutcome::fixed alone; afterwards it is not violated.

  /// Whether the rule is one of the configuration's target, and violated.
  [[nodiscard]] bool applies_to(const CudaGraphConfig& config) const {
    return targets.contains(config.target) && violated(config);
  }
};

/// All rules, by id.
[[nodiscard]] PIANOLA_API std::span<const ConfigRule> config_rules() noexcept;

/// @param id  "CF101". @throws UsageError  There is no such rule.
[[nodiscard]] PIANOLA_API const ConfigRule& config_rule(std::string_view id);

/// The rule for reading: condition, what is said, why, what to do, and for whose graphs it holds.
[[nodiscard]] PIANOLA_API std::string describe(const ConfigRule& rule);

}  // namespace pianola

#pragma once
#include <pianola/config/cuda_graph_config.hpp>
#include <pianola/config/rule.hpp>
#include <pianola/core/export.hpp>

#include <cstddef>
#include <string>
#include <vector>

namespace pianola {

/// A member that a rule has changed, its values as in a file.
struct ConfigChange {
  std::string key;  ///< "rng.te_rng_tracker"
  std::string from;
  std::string to;
};

/// A rule that a configuration violates.
struct ConfigFinding {
  const ConfigRule* rule = nullptr;
  std::string message;                     ///< The rule's, with the values of this configuration.
  std::vector<ConfigChange> changes = {};  ///< Of ConfigOutcome::fixed alone.
};

/// What check_config() found: everything at once.
struct PIANOLA_API ConfigReport {
  CudaGraphConfig config;               ///< With all that could be fixed.
  std::vector<ConfigFinding> findings;  ///< What was fixed in the order of fixing, then errors and warnings by id.
  std::vector<std::string> notes = {};  ///< Printed before the findings: how a file was read, for example.

  /// Nothing is in the way of a capture: there is no error.
  [[nodiscard]] bool ok() const noexcept { return count(ConfigOutcome::error) == 0; }
  [[nodiscard]] std::size_t count(ConfigOutcome outcome) const noexcept;
  /// 0 where ok(), else 3, as the program's.
  [[nodiscard]] int exit_code() const noexcept { return ok() ? 0 : 3; }

  /// Findings, and the members of the resulting configuration that are not as by default.
  [[nodiscard]] std::string to_text() const;
  /// The same for programs; "configuration" has every member that is set, nested as in a file, so that it can be read
  /// by parse_config().
  [[nodiscard]] std::string to_json(int indent = 2) const;
};

/// Applies the rules of the configuration's target: first those that fix, each one seeing what those before it did,
/// then the others. Needs no device.
[[nodiscard]] PIANOLA_API ConfigReport check_config(CudaGraphConfig config);

/// What has to hold before a capture. Fixes and warnings are not in the way.
/// @throws ConfigError  check_config() finds errors; the message has all of them.
PIANOLA_API void require_valid(const CudaGraphConfig& config);

}  // namespace pianola

#pragma once
#include <pianola/config/cuda_graph_config.hpp>
#include <pianola/core/export.hpp>

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace pianola {

enum class ConfigFormat { json, yaml };

/// How a configuration is read.
struct ConfigFileOptions {
  /// Skip keys that are none of a CudaGraphConfig, so that a framework's whole configuration can be read. One that
  /// looks like a misspelling still is an error.
  bool allow_other_keys = false;
};

/// What a file said.
struct LoadedConfig {
  CudaGraphConfig config;
  std::vector<std::string> migrated = {};    ///< What was written under an old name, a sentence each.
  std::vector<std::string> other_keys = {};  ///< What was skipped.
};

/// A file under the names of today.
struct MigratedConfig {
  std::string text;                        ///< JSON, which is YAML as well.
  std::vector<std::string> migrated = {};  ///< What was written under an old name, a sentence each; empty: nothing was.
};

/// Reads a configuration: a JSON file, or a YAML file if it is named .yaml or .yml. Keys stand in sections as
/// config_fields() has them ("model": {"cuda_graph_impl": ...}), as dotted keys ("model.cuda_graph_impl"), or by their
/// name alone at the top of the file. Old names (enable_cuda_graph, external_cuda_graph, cuda_graph_scope, and modules
/// that are none any more) are read as what they are today. The values are not checked against each other: that does
/// check_config().
///
/// @throws ConfigError       All at once, with the key of each: unknown ones (the message has the nearest key), values
///                           of another type, one thing said twice in different words; or the file is no JSON.
/// @throws UnsupportedError  It is YAML, and Pianola was built without yaml-cpp.
/// @throws UsageError        It cannot be read.
[[nodiscard]] PIANOLA_API LoadedConfig load_config(const std::filesystem::path& file,
                                                   const ConfigFileOptions& options = {});

/// The same of a text. @param name  What messages call it.
[[nodiscard]] PIANOLA_API LoadedConfig parse_config(const std::string& text, ConfigFormat format = ConfigFormat::json,
                                                    const ConfigFileOptions& options = {},
                                                    const std::string& name = "the configuration");

/// Rewrites a file under the names of today. What has no old name stays as it is, whatever it says, but for dotted keys,
/// which are put into their sections.
/// @throws  As load_config(), but of unknown keys and wrong types only those that bear on old names.
[[nodiscard]] PIANOLA_API MigratedConfig migrate_config(const std::filesystem::path& file);

}  // namespace pianola

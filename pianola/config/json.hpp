#pragma once
#include <pianola/config/cuda_graph_config.hpp>
#include <pianola/config/field.hpp>

#include <nlohmann/json.hpp>

#include <string>

namespace pianola {

using ConfigJson = nlohmann::ordered_json;  // keys stand in the order of adding

/// How deep sections and lists of a file may lie in each other: what goes through them does so by recursion.
inline constexpr int kDeepestConfig = 64;

/// On one line, whatever bytes its texts hold; shortened where it is long.
[[nodiscard]] std::string written(const ConfigJson& json);

/// A value of JSON as that of a field.
/// @throws ConfigError  It is an object, or a list of other things than texts or integers.
[[nodiscard]] ConfigValue value_from_json(const ConfigJson& json);
[[nodiscard]] ConfigJson json_of(const ConfigValue& value);

/// Every member that has a value, nested as in a file.
[[nodiscard]] ConfigJson json_of(const CudaGraphConfig& config);

}  // namespace pianola

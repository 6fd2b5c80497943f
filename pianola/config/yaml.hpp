#pragma once
#include <pianola/config/json.hpp>

#include <string>

namespace pianola {

/// YAML 1.2 as JSON: plain scalars become null, true, false and numbers where they are written so; all else is text.
///
/// @param name  Of the file, for messages.
/// @throws ConfigError       It is no YAML; a key is no text or a duplicate.
/// @throws UnsupportedError  Pianola was built without yaml-cpp.
[[nodiscard]] ConfigJson json_of_yaml(const std::string& text, const std::string& name);

}  // namespace pianola

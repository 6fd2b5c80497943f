#include <pianola/config/json.hpp>

#include <pianola/core/display_width.hpp>
#include <pianola/core/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace pianola {
namespace {

bool all_of(const ConfigJson& list, bool (ConfigJson::*is)() const noexcept) {
  return std::all_of(list.begin(), list.end(), [&](const ConfigJson& item) { return (item.*is)(); });
}

// Beyond int64 it is a number like any other: no field takes so large an integer.
ConfigValue number_from_json(const ConfigJson& json) {
  const bool fits = !json.is_number_unsigned() || std::in_range<std::int64_t>(json.get<std::uint64_t>());
  if (json.is_number_integer() && fits) return json.get<std::int64_t>();
  return json.get<double>();
}

}  // namespace

std::string written(const ConfigJson& json) {
  constexpr std::size_t kShown = 200;
  return shorten(json.dump(-1, ' ', false, ConfigJson::error_handler_t::replace), kShown);
}

ConfigValue value_from_json(const ConfigJson& json) {
  if (json.is_null()) return {};
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number()) return number_from_json(json);
  if (json.is_string()) return json.get<std::string>();
  if (json.is_array() && all_of(json, &ConfigJson::is_string)) return json.get<std::vector<std::string>>();
  if (json.is_array() && all_of(json, &ConfigJson::is_number_integer)) return json.get<std::vector<std::int64_t>>();
  throw ConfigError({.what = fmt::format("{} is no value, nor a list of texts or of integers", written(json))});
}

ConfigJson json_of(const ConfigValue& value) {
  return std::visit(
      [](const auto& held) {
        if constexpr (std::is_same_v<std::decay_t<decltype(held)>, std::monostate>) {
          return ConfigJson(nullptr);
        } else {
          return ConfigJson(held);
        }
      },
      value);
}

ConfigJson json_of(const CudaGraphConfig& config) {
  ConfigJson document = ConfigJson::object();
  for (const ConfigField& field : config_fields()) {
    const ConfigValue value = field.get(config);
    if (std::holds_alternative<std::monostate>(value)) continue;
    ConfigJson* section = &document;
    for (std::string_view rest = field.section; !rest.empty();) {
      const std::size_t dot = std::min(rest.find('.'), rest.size());
      section = &(*section)[std::string(rest.substr(0, dot))];
      rest.remove_prefix(std::min(dot + 1, rest.size()));
    }
    (*section)[std::string(field.name)] = json_of(value);
  }
  return document;
}

}  // namespace pianola

#include <pianola/config/yaml.hpp>

#include <pianola/core/error.hpp>

#include <fmt/format.h>

#if PIANOLA_WITH_YAML

#include <yaml-cpp/yaml.h>

#include <array>
#include <charconv>
#include <string_view>

namespace pianola {
namespace {

template <class Number>
bool is_number(std::string_view text, Number& number) {
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto [rest, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  return failure == std::errc{} && rest == text.data() + text.size();
}

// The core schema of YAML 1.2, in which yes, no, on and off are texts.
ConfigJson json_of_plain(const std::string& text) {
  if (text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL") return nullptr;
  if (text == "true" || text == "True" || text == "TRUE") return true;
  if (text == "false" || text == "False" || text == "FALSE") return false;
  std::int64_t integer = 0;
  double number = 0.0;
  const bool like_a_number = text.find_first_of("0123456789") != std::string::npos;  // inf and nan are texts here
  if (like_a_number && is_number(text, integer)) return integer;
  if (like_a_number && is_number(text, number)) return number;
  return text;
}

std::string place_of(const YAML::Mark& mark) {
  return mark.is_null() ? "" : fmt::format("line {}, column {}", mark.line + 1, mark.column + 1);
}

std::string key_of(const YAML::Node& key) {
  if (!key.IsScalar()) throw ConfigError({.what = "a key is no text", .where = place_of(key.Mark())});
  return key.Scalar();
}

constexpr int kMostValues = 100'000;

// Anchors can make a document that never ends, or one of ten lines that has a billion values.
ConfigJson json_of(const YAML::Node& node, int depth, int& values) {
  if (depth > kDeepestConfig)
    throw ConfigError({.what = fmt::format("it is nested more than {} deep", kDeepestConfig)});
  if (++values > kMostValues) throw ConfigError({.what = fmt::format("it has more than {} values", kMostValues)});
  if (node.IsSequence()) {
    ConfigJson list = ConfigJson::array();
    for (const auto& item : node) list.push_back(json_of(item, depth + 1, values));
    return list;
  }
  if (node.IsMap()) {
    ConfigJson object = ConfigJson::object();
    for (const auto& entry : node) {
      const std::string key = key_of(entry.first);
      if (object.contains(key)) {
        throw ConfigError({.what = fmt::format("duplicate key '{}'", key), .where = place_of(entry.first.Mark())});
      }
      object[key] = json_of(entry.second, depth + 1, values);
    }
    return object;
  }
  if (!node.IsScalar()) return nullptr;
  return node.Tag() == "?" ? json_of_plain(node.Scalar()) : ConfigJson(node.Scalar());  // "?": neither quotes nor tag
}

}  // namespace

ConfigJson json_of_yaml(const std::string& text, const std::string& name) {
  try {
    int values = 0;
    return json_of(YAML::Load(text), 0, values);
  } catch (const YAML::Exception& error) {
    throw ConfigError({.what = fmt::format("'{}' is no YAML: {}", name, error.msg), .where = place_of(error.mark)});
  } catch (const ConfigError& error) {
    throw ConfigError(
        {.what = fmt::format("'{}': {}", name, error.diagnosis().what), .where = error.diagnosis().where});
  }
}

}  // namespace pianola

#else

namespace pianola {

ConfigJson json_of_yaml(const std::string&, const std::string& name) {
  throw UnsupportedError(
      {.what = fmt::format("'{}' is YAML, which this build of Pianola cannot read", name),
       .fix = "install yaml-cpp (Debian's package libyaml-cpp-dev) and build again, or write the file in JSON"});
}

}  // namespace pianola

#endif

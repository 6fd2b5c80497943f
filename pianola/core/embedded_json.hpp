#pragma once
#include <string>

namespace pianola {

/// A JSON value as it may stand in a <script> of a page: ASCII without "<", bytes that are no UTF-8 as U+FFFD.
/// @param json  A nlohmann::basic_json.
template <class Json>
[[nodiscard]] std::string embedded(const Json& json) {
  std::string text;
  for (const char c : json.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace)) {
    if (c == '<') {
      text += "\\u003c";
    } else {
      text += c;
    }
  }
  return text;
}

}  // namespace pianola

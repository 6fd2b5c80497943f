#pragma once
#include <cstddef>
#include <string>
#include <vector>

namespace pianola {

/// What makes "call" of one, and "calls" of all other counts.
constexpr const char* plural(std::size_t count) noexcept { return count == 1 ? "" : "s"; }

/// ": it", or ":" and a line for each.
[[nodiscard]] inline std::string listed(const std::vector<std::string>& sentences) {
  if (sentences.size() == 1) return ": " + sentences.front();
  std::string text = ":";
  for (const std::string& sentence : sentences) text += "\n  - " + sentence;
  return text;
}

}  // namespace pianola

#pragma once
#include <algorithm>
#include <string_view>

namespace pianola::profiling {

/// A name without a counter at its end: "ProfilerStep#12" is "ProfilerStep", "Optimizer.step#AdamW.step" stays.
[[nodiscard]] inline std::string_view without_counter(std::string_view name) {
  const std::size_t mark = name.rfind('#');
  if (mark == std::string_view::npos || mark == 0 || mark + 1 == name.size()) return name;
  const auto is_digit = [](char c) { return '0' <= c && c <= '9'; };
  return std::ranges::all_of(name.substr(mark + 1), is_digit) ? name.substr(0, mark) : name;
}

}  // namespace pianola::profiling

#pragma once
#include <fmt/format.h>

#include <iterator>
#include <string>
#include <utility>

namespace pianola::profiling {

/// Appends formatted text to a page.
template <class... Args>
void append(std::string& html, fmt::format_string<Args...> format, Args&&... args) {
  fmt::format_to(std::back_inserter(html), format, std::forward<Args>(args)...);
}

}  // namespace pianola::profiling

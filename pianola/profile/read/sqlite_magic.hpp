#pragma once
#include <array>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>

namespace pianola::profiling {

/// Whether a file begins as those of SQLite do; false where it cannot be read.
[[nodiscard]] inline bool is_sqlite(const std::filesystem::path& file) {
  std::error_code unknown;
  if (!std::filesystem::is_regular_file(file, unknown)) return false;  // To open a pipe would wait for its writer.
  constexpr std::string_view kMagic("SQLite format 3\0", 16);
  std::array<char, kMagic.size()> begin = {};
  return std::ifstream(file, std::ios::binary).read(begin.data(), begin.size()) &&
         std::string_view(begin.data(), begin.size()) == kMagic;
}

}  // namespace pianola::profiling

#pragma once
#include <pianola/core/export.hpp>

#include <cstddef>
#include <string>
#include <string_view>

namespace pianola {

/// Columns that UTF-8 text takes on a terminal: one per character, none for combining marks, two for wide East Asian
/// characters and emoji. Bytes that are not UTF-8 count as one each.
[[nodiscard]] PIANOLA_API std::size_t display_width(std::string_view text);

/// `text` cut to `width` columns, the last of which is then "…"; unchanged where it fits. Never cuts a character.
[[nodiscard]] PIANOLA_API std::string shorten(std::string_view text, std::size_t width);

enum class Align { left, right };

/// `text` filled with blanks up to `width` columns.
[[nodiscard]] std::string pad(std::string_view text, std::size_t width, Align align);

/// `text` as UTF-8 that any terminal and any reader of UTF-8 takes: bytes that are no character, and control characters other
/// than line breaks and tabs, are "?".
[[nodiscard]] PIANOLA_API std::string printable(std::string_view text);

/// `text` with line breaks, tabs and other control characters replaced by blanks, so that it stays on its line.
[[nodiscard]] PIANOLA_API std::string one_line(std::string_view text);

}  // namespace pianola

#include <pianola/core/display_width.hpp>

#include <algorithm>
#include <array>
#include <cstdint>

namespace pianola {
namespace {

struct Character {
  std::uint32_t code;
  std::size_t bytes;
};

Character first_character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const std::uint8_t lead = byte(0);
  const std::size_t bytes = lead < 0xC2 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 1;
  if (bytes == 1 || text.size() < bytes) return {lead, 1};
  std::uint32_t code = lead & (0x7FU >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xC0U) != 0x80U) return {lead, 1};
    code = (code << 6U) | (byte(i) & 0x3FU);
  }
  return {code, bytes};
}

struct Range {
  std::uint32_t first;
  std::uint32_t last;
};

bool in(std::uint32_t code, const auto& ranges) {
  return std::any_of(ranges.begin(), ranges.end(), [&](Range r) { return code >= r.first && code <= r.last; });
}

// The ranges that occur in names and messages, after Unicode's EastAsianWidth.txt and the general category Mn.
std::size_t columns(std::uint32_t code) {
  static constexpr std::array kCombining = {Range{0x0300, 0x036F}, Range{0x1AB0, 0x1AFF}, Range{0x200B, 0x200F},
                                            Range{0x20D0, 0x20FF}, Range{0xFE00, 0xFE0F}, Range{0xFE20, 0xFE2F}};
  static constexpr std::array kWide = {Range{0x1100, 0x115F},   Range{0x2E80, 0x303E},   Range{0x3041, 0xA4CF},
                                       Range{0xAC00, 0xD7A3},   Range{0xF900, 0xFAFF},   Range{0xFE30, 0xFE6F},
                                       Range{0xFF00, 0xFF60},   Range{0xFFE0, 0xFFE6},   Range{0x1F300, 0x1F64F},
                                       Range{0x1F680, 0x1F6FF}, Range{0x1F900, 0x1FAFF}, Range{0x20000, 0x3FFFD}};
  if (code < 0x0300) return 1;
  if (in(code, kCombining)) return 0;
  return in(code, kWide) ? 2 : 1;
}

// Longer than need be, half of a pair, or beyond the last one: no UTF-8, though it looks like it.
bool is_valid(const Character& c) {
  if (c.bytes == 1) return c.code < 0x80;
  if (c.bytes == 3) return c.code >= 0x800 && (c.code < 0xD800 || c.code > 0xDFFF);
  return c.bytes == 2 || (c.code >= 0x10000 && c.code <= 0x10FFFF);
}

bool is_control(std::uint32_t code) { return (code < 0x20 && code != '\n' && code != '\t') || code == 0x7F; }

}  // namespace

std::string printable(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const Character c = first_character(text);
    if (is_valid(c) && !is_control(c.code)) {
      result += text.substr(0, c.bytes);
      text.remove_prefix(c.bytes);
    } else {
      result += '?';
      text.remove_prefix(1);
    }
  }
  return result;
}

std::size_t display_width(std::string_view text) {
  std::size_t width = 0;
  while (!text.empty()) {
    const Character c = first_character(text);
    width += columns(c.code);
    text.remove_prefix(c.bytes);
  }
  return width;
}

std::string shorten(std::string_view text, std::size_t width) {
  if (display_width(text) <= width) return std::string(text);
  if (width == 0) return {};
  std::size_t used = 0;
  std::size_t bytes = 0;
  while (bytes < text.size()) {
    const Character c = first_character(text.substr(bytes));
    if (used + columns(c.code) > width - 1) break;
    used += columns(c.code);
    bytes += c.bytes;
  }
  return std::string(text.substr(0, bytes)) + "…";
}

std::string pad(std::string_view text, std::size_t width, Align align) {
  const std::size_t used = display_width(text);
  const std::string blanks(width > used ? width - used : 0, ' ');
  return align == Align::right ? blanks + std::string(text) : std::string(text) + blanks;
}

std::string one_line(std::string_view text) {
  std::string line(text);
  std::replace_if(
      line.begin(), line.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }, ' ');
  return line;
}

}  // namespace pianola

#include <pianola/profile/show/html_text.hpp>

#include <pianola/core/display_width.hpp>

namespace pianola::profiling {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD
constexpr std::string_view kNonBreakingBlank = "\xC2\xA0";

std::size_t length_by_lead(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead < 0xE0) return 2;
  if (lead >= 0xE0 && lead < 0xF0) return 3;
  if (lead >= 0xF0 && lead < 0xF5) return 4;
  return 0;
}

// Bytes of the character that `text` begins with; 0: it is not UTF-8. Overlong forms and surrogates are not.
std::size_t character_length(std::string_view text) {
  const auto byte = [text](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const std::size_t length = length_by_lead(byte(0));
  if (length == 0 || length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0U) != 0x80U) return 0;
  }
  if (byte(0) == 0xE0 && byte(1) < 0xA0) return 0;
  if (byte(0) == 0xED && byte(1) > 0x9F) return 0;
  if (byte(0) == 0xF0 && byte(1) < 0x90) return 0;
  if (byte(0) == 0xF4 && byte(1) > 0x8F) return 0;
  return length;
}

void append_escaped(std::string& html, char ascii) {
  switch (ascii) {
    case '&':
      html += "&amp;";
      return;
    case '<':
      html += "&lt;";
      return;
    case '>':
      html += "&gt;";
      return;
    case '"':
      html += "&quot;";
      return;
    case '\'':
      html += "&#39;";
      return;
    default:
      break;
  }
  const auto code = static_cast<unsigned char>(ascii);
  html += (code < 0x20 && ascii != '\n') || code == 0x7F ? ' ' : ascii;
}

// The parameters are the last pair of parentheses, where the text ends with it.
std::string_view without_parameters(std::string_view name) {
  if (name.empty() || name.back() != ')') return name;
  int depth = 0;
  for (std::size_t i = name.size(); i-- > 1;) {
    if (name[i] == ')') ++depth;
    if (name[i] == '(' && --depth == 0) return name.substr(0, i);
  }
  return name;
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string html;
  html.reserve(text.size());
  while (!text.empty()) {
    const std::size_t length = character_length(text);
    if (length == 1) {
      append_escaped(html, text.front());
    } else {
      html += length == 0 ? kReplacement : text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return html;
}

// A character that takes columns and marks that take none are seldom longer than that, and names may have megabytes.
std::string escaped(std::string_view text, std::size_t width) {
  return escaped(shorten(one_line(text.substr(0, 16 * width)), width));
}

std::string unbroken(std::string html) {
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  for (std::size_t at = html.find(' ', 1); at != std::string::npos; at = html.find(' ', at + 1)) {
    if (html[at - 1] < '0' || html[at - 1] > '9') continue;
    for (const std::string_view unit : {"%", "ns", "us", "ms", "s", "KiB", "MiB", "GiB"}) {
      const std::size_t behind = at + 1 + unit.size();
      if (html.compare(at + 1, unit.size(), unit) != 0) continue;
      if (behind < html.size() && is_letter(html[behind])) continue;
      html.replace(at, 1, kNonBreakingBlank);
      break;
    }
  }
  return html;
}

std::string readable(std::string_view kernel) {
  constexpr std::string_view kVoid = "void ";
  if (kernel.substr(0, kVoid.size()) == kVoid) kernel.remove_prefix(kVoid.size());
  kernel = kernel.substr(0, kernel.find(" [clone"));
  std::string name(without_parameters(kernel));
  for (const std::string_view space : {"at::native::", "(anonymous namespace)::"}) {
    for (std::size_t at = name.find(space); at != std::string::npos; at = name.find(space, at)) {
      name.erase(at, space.size());
    }
  }
  return name;
}

}  // namespace pianola::profiling

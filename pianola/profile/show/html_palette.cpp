#include <pianola/profile/show/html_palette.hpp>

#include <fmt/format.h>

#include <array>
#include <iterator>

namespace pianola::profiling {
namespace {

constexpr std::array kColours = {
    // What things stand on, and what separates them.
    PageColour{"page", "#ffffff", "#14171b"},
    PageColour{"raised", "#f4f5f7", "#1c2026"},
    PageColour{"line", "#dcdfe4", "#30363e"},
    // Text.
    PageColour{"text", "#1d2126", "#e6e8eb"},
    PageColour{"muted", "#565d66", "#a3abb5"},
    PageColour{"accent", "#0b57a4", "#7db8f7"},
    // Verdicts: the mark, and the text on it.
    PageColour{"good", "#1a6b45", "#63d3a2"},
    PageColour{"caution", "#8f5a00", "#e8b44c"},
    PageColour{"neutral", "#4b535d", "#aab2bc"},
    PageColour{"on-mark", "#ffffff", "#14171b"},
    // Ranges of the timeline, which carry text.
    PageColour{"range", "#dbe4ef", "#2c3947"},
    // Marks of the timeline and of the charts.
    PageColour{"kernel", "#1c80d2", "#4fa6f5"},
    PageColour{"memset", "#2c5d5e", "#4f8a80"},
    PageColour{"copy", "#ba8410", "#e8ad3a"},
    PageColour{"launch", "#ad2c0e", "#df553f"},
    PageColour{"graph", "#003a9b", "#a5d2fb"},
    PageColour{"synchronization", "#8c3a80", "#a657b2"},
    PageColour{"data", "#0a5c3e", "#7ceed6"},
    PageColour{"device", "#8b9096", "#7f8388"},
};

}  // namespace

std::span<const PageColour> page_colours() noexcept { return kColours; }

std::string colour_declarations(bool dark) {
  std::string css;
  for (const PageColour& colour : kColours) {
    fmt::format_to(std::back_inserter(css), "--{}:{};", colour.name, dark ? colour.dark : colour.light);
  }
  return css;
}

}  // namespace pianola::profiling

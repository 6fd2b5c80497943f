#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace pianola::profiling {

/// A colour of the page, which its style sheet knows as var(--name), in both schemes: "#rrggbb".
struct PageColour {
  std::string_view name;
  std::string_view light, dark;
};

/// All colours of the page. Every text has a contrast of 4.5 or more against what it stands on, every mark one of 3, as
/// WCAG 2.2 asks for; marks that stand in one row are told apart with any kind of colour vision.
[[nodiscard]] std::span<const PageColour> page_colours() noexcept;

/// The declarations of a style sheet for one scheme: "--page:#ffffff;--text:...".
[[nodiscard]] std::string colour_declarations(bool dark);

}  // namespace pianola::profiling

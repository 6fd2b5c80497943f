#pragma once
#include <pianola/core/export.hpp>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace pianola {

/// Fewest insertions, removals and replacements of a character that make `to` of `from`.
[[nodiscard]] std::size_t edit_distance(std::string_view from, std::string_view to);

/// The candidate that `name` is likely a misspelling of; empty where none is near.
[[nodiscard]] std::string_view nearest_name(std::string_view name, std::span<const std::string_view> candidates);

/// "; did you mean 'local'?", or nothing.
[[nodiscard]] PIANOLA_API std::string did_you_mean(std::string_view name, std::span<const std::string_view> candidates);

}  // namespace pianola

#pragma once
#include <pianola/profile/decide/work_parts.hpp>
#include <pianola/profile/timeline.hpp>

#include <optional>
#include <span>
#include <string_view>

namespace pianola::profiling {

/// The part of an iteration that what happens inside of these ranges belongs to; nothing: they do not tell.
/// @param open  Outermost first.
[[nodiscard]] std::optional<Part> part_by_ranges(const Timeline& timeline, std::span<const HostRange* const> open);

/// "nn.Module: Linear_3" is of the kind "Linear"; empty: it is no module that torch names. Borrows the timeline.
[[nodiscard]] std::string_view kind_of_module(const Timeline& timeline, const HostRange& range);

}  // namespace pianola::profiling

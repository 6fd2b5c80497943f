#pragma once
#include <cstddef>

namespace pianola {

/// What makes "call" of one, and "calls" of all other counts.
constexpr const char* plural(std::size_t count) noexcept { return count == 1 ? "" : "s"; }

}  // namespace pianola

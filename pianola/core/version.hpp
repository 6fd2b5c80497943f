#pragma once
#include <pianola/core/export.hpp>

#include <string_view>

namespace pianola {

/// The version of the library that is loaded, "major.minor.patch".
[[nodiscard]] PIANOLA_API std::string_view version() noexcept;

}  // namespace pianola

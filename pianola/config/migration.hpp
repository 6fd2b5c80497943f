#pragma once
#include <pianola/config/json.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace pianola {

/// Writes what stands under old names under those of today, in place. Sections have to be objects already.
///
/// @param problems  What contradicts itself is added here, a sentence each, and left as it is.
/// @return          What was done, a sentence each.
[[nodiscard]] std::vector<std::string> migrate_names(ConfigJson& document, std::vector<std::string>& problems);

/// Why there is no such key any more; empty: there never was one, or it has a new name.
[[nodiscard]] std::string_view removed_key(std::string_view name);

}  // namespace pianola

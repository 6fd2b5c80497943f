#pragma once
#include <pianola/config/json.hpp>

#include <string>
#include <vector>

namespace pianola {

/// Writes what stands under old names under those of today, in place. Sections have to be objects already.
///
/// @param problems  What contradicts itself is added here, a sentence each, and left as it is.
/// @return          What was done, a sentence each.
[[nodiscard]] std::vector<std::string> migrate_names(ConfigJson& document, std::vector<std::string>& problems);

}  // namespace pianola

#pragma once
#include <pianola/core/export.hpp>
#include <pianola/profile/timeline.hpp>

#include <filesystem>

namespace pianola {

/// Reads a profile of whatever kind: a Chrome trace as torch.profiler writes it (.json, .json.gz), or a folder of recordings
/// of `pianola profile`.
///
/// @throws UsageError  There is none, it cannot be read, or it is of no known kind. A report of Nsight Systems (.nsys-rep)
///                     has to be exported first, and an export (.sqlite) is read by Python: the messages say how.
[[nodiscard]] PIANOLA_API Timeline read_profile(const std::filesystem::path& path);

}  // namespace pianola

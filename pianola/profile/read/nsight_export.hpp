#pragma once
#include <pianola/core/export.hpp>
#include <pianola/profile/timeline.hpp>

#include <filesystem>

namespace pianola {

/// Reads an SQLite file that Nsight Systems exported (`nsys export --type sqlite`, `nsys profile --export sqlite`): kernels,
/// copies, memsets, launches of graphs, calls of CUDA and NVTX ranges. Those of torch.autograd.profiler.emit_nvtx are taken
/// for the operations that they are of. Tables that were not made, since nothing was recorded for them, and columns that
/// a version lacks are done without, where that is possible; Timeline::notes says what the timeline lacks for it.
///
/// Processes are numbered in the order in which they appear. The file is not changed, and nothing is put beside it.
///
/// @return  Sorted. Times are the file's: nanoseconds since the recording began.
/// @throws UsageError  There is no such file; it is no SQLite file, no export of Nsight Systems, is cut off or damaged,
///                     has no work of a GPU; or this build has no SQLite.
/// Threads:  safe.
/// Cost:     Under a microsecond and about 100 bytes an event that is kept; of the file a row at a time, names once.
/// Source:   Nsight Systems' User Guide, "SQLite Schema Reference", of 2021.5 to 2026.
[[nodiscard]] PIANOLA_API Timeline read_nsight_export(const std::filesystem::path& file);

}  // namespace pianola

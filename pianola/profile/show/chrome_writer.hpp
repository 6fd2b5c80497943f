#pragma once
#include <pianola/core/export.hpp>
#include <pianola/profile/analyse/analysis.hpp>
#include <pianola/profile/timeline.hpp>

#include <filesystem>

namespace pianola {

/// Writes a Chrome trace for ui.perfetto.dev and chrome://tracing.
///
/// A process for each host process, with a track for each thread: ranges and calls. A process for each of its devices,
/// with a track for each stream (several, where work of a stream overlaps), one for the launches of graphs, each around
/// its nodes, and for the device of `analysis` one for the iterations and one for the gaps, named by their cause. An
/// arrow leads from each call to each piece of work that it issued. What the allocator did is on the threads that asked
/// it, and a curve of what is allocated beside them for each device. read_chrome_trace() reads the same work, calls,
/// ranges and events of the allocator back.
///
/// @param analysis  Of `timeline`; a default one adds no iterations and no gaps.
/// @param file      Compressed with gzip where its name ends with ".gz".
/// @throws UsageError  The file cannot be written, or is to be compressed by a build without zlib.
/// Threads:  safe.
/// Cost:     Writes 150 to 500 bytes an event as it goes; keeps a number per call, and each name once more.
PIANOLA_API void write_chrome_trace(const Timeline& timeline, const Analysis& analysis,
                                    const std::filesystem::path& file);

}  // namespace pianola

#pragma once
#include <pianola/core/export.hpp>
#include <pianola/profile/timeline.hpp>

#include <string>

namespace pianola {

/// Reads what `pianola profile` recorded of one process. Times begin at 0; names of kernels are demangled; of a call of
/// the runtime that calls the driver only the outer one is kept.
///
/// A process that crashed or was killed leaves a file without its end: what is there is read, and Timeline::notes says
/// what may be missing. They also tell of records that were dropped and of a reached bound of the file's size.
///
/// @throws UsageError  There is no such file, or it is no recording, or one of a newer version.
[[nodiscard]] PIANOLA_API Timeline read_recording(const std::string& path);

/// The same of all processes that were recorded into a folder, on one clock; processes are numbered in the order in
/// which they first used CUDA, those without any work left out. Notes name the process by its id. A file that is no
/// recording, and a process that could not be recorded, is a note too.
///
/// @throws UsageError  There is no such folder, or no recording in it; where the recorder said why, its words.
[[nodiscard]] PIANOLA_API Timeline read_recordings(const std::string& folder);

}  // namespace pianola

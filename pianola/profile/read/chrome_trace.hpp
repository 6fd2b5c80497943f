#pragma once
#include <pianola/core/export.hpp>
#include <pianola/profile/timeline.hpp>

#include <filesystem>

namespace pianola {

/// Reads a Chrome trace as torch.profiler writes it (torch 2.0 to 2.11: `export_chrome_trace`,
/// `tensorboard_trace_handler`) or write_chrome_trace() does: an object with "traceEvents" or a bare array of events,
/// plain or compressed with gzip. The text is read piece by piece and never held as a whole.
///
/// A trace without work of a device, of a program that launches none, is a profile of the CPU: the outermost ATen
/// operations of each thread are its work. What torch's allocator did is there where the trace was recorded with
/// `profile_memory`, of the CPU and of CUDA devices. What is unknown is passed over; events without a duration or with fields of
/// a wrong type are left out, and counted in Timeline::notes. Of a file that is cut off, or is no JSON from some place
/// on, all before that place is kept, and a note says where it is.
///
/// @return  Sorted; nanoseconds are kept. Times are those of the trace and of its "baseTimeNanoseconds" together.
/// @throws UsageError  There is no such file; it is a folder, is empty, is no JSON, has no trace events; it is
///                     compressed and damaged, or this build has no zlib.
/// Threads:  safe.
/// Cost:     1 to 3 microseconds and at most 200 bytes an event that is kept, while it reads; names are kept once.
/// Source:   kineto's ChromeTraceLogger, libkineto/src/output_json.cpp.
[[nodiscard]] PIANOLA_API Timeline read_chrome_trace(const std::filesystem::path& file);

}  // namespace pianola

#pragma once
#include <pianola/profile/timeline.hpp>

#include <string>

namespace pianola::profiling {

/// Writes a timeline as Nsight Systems 2026 exports it (schema 3.24), into a new file: names of calls with the version of
/// their signature, every other range's name among the registered ones, and rows beside those that readers look for. Process
/// number i is kNsightPid + i.
void write_nsight_file(const Timeline& timeline, const std::string& path);
inline constexpr int kNsightPid = 4000;

/// Runs statements of SQL on a file, which is made where there is none.
void run_sql(const std::string& path, const std::string& statements);

}  // namespace pianola::profiling

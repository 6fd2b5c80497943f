#pragma once
#include <pianola/core/error.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace pianola::profiling {

/// Why a process could not be recorded, as its recorder left it for the program that started it: a file of two lines.
struct RecorderStatus {
  std::uint32_t process_id = 0;
  Diagnosis problem;  ///< Without place and rule; empty where the file could not be read.
};

/// Throws nothing but std::bad_alloc; that it cannot be written, nobody can be told.
void write_status(const std::string& folder, const RecorderStatus& status);

/// All in a folder, by process id.
[[nodiscard]] std::vector<RecorderStatus> read_statuses(const std::string& folder);

/// The files of a folder whose name is a number and this suffix, by number; none where there is no such folder.
struct ProcessFile {
  std::uint32_t process_id = 0;
  std::string path;
};
[[nodiscard]] std::vector<ProcessFile> process_files(const std::string& folder, const std::string& suffix);

}  // namespace pianola::profiling

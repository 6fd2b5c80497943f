#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>

namespace pianola::profiling {

/// A name for a file in the tests' folder, which is removed at the end, whoever wrote it.
class TraceFile {
 public:
  TraceFile()
      : path_(std::filesystem::path(::testing::TempDir()) /
              ("pianola_trace_" + std::to_string(getpid()) + "_" + std::to_string(count_++) + ".json")) {}
  explicit TraceFile(std::string_view text) : TraceFile() { std::ofstream(path_, std::ios::binary) << text; }
  ~TraceFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  TraceFile(TraceFile&&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

 private:
  inline static int count_ = 0;
  std::filesystem::path path_;
};

}  // namespace pianola::profiling

#pragma once
#include <filesystem>
#include <memory>
#include <string_view>

namespace pianola::profiling {

/// A file that is being written, compressed with gzip where its name ends with ".gz".
class TraceSink {
 public:
  /// Never null, but it may not be open: errno says why.
  /// @throws UsageError  It is to be compressed, and this build has no zlib.
  [[nodiscard]] static std::unique_ptr<TraceSink> open(const std::filesystem::path& file);

  TraceSink() = default;
  TraceSink(const TraceSink&) = delete;
  TraceSink& operator=(const TraceSink&) = delete;
  virtual ~TraceSink() = default;

  [[nodiscard]] virtual bool is_open() const = 0;
  /// False if not all could be written; errno says why, where it is known.
  [[nodiscard]] virtual bool write(std::string_view text) = 0;
  [[nodiscard]] virtual bool close() = 0;
};

}  // namespace pianola::profiling

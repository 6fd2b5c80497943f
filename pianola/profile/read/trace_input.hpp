#pragma once
#include <cstddef>
#include <filesystem>
#include <istream>
#include <memory>
#include <string>

namespace pianola::profiling {

/// The text of a trace file, plain or compressed with gzip (told by its first bytes), read piece by piece.
class TraceInput {
 public:
  /// @throws UsageError  There is no such file, it is a folder, is empty, cannot be opened, or is compressed and the
  ///                     build has no zlib.
  explicit TraceInput(const std::filesystem::path& file);
  ~TraceInput();
  TraceInput(TraceInput&&) = delete;

  [[nodiscard]] std::istream& stream() noexcept { return stream_; }
  [[nodiscard]] bool compressed() const noexcept { return compressed_; }

  /// Why the stream ended before the file did ("invalid stored block lengths"), in the words of zlib or the system;
  /// empty: it did not, or not yet. A compressed file that is cut off only ends early.
  [[nodiscard]] const std::string& damage() const noexcept;

  class Buffer;

 private:
  bool compressed_ = false;
  std::unique_ptr<Buffer> buffer_;
  std::istream stream_;
};

}  // namespace pianola::profiling

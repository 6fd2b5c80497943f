#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <istream>
#include <string>

namespace pianola::training {

/// A file that takes the place of another one when it is whole. Until then it has a name in the same folder that nobody
/// knows, and is gone with this object.
class ReplacementFile {
 public:
  /// @throws UsageError  (this and commit()) The file cannot be written; names it, and the system's reason.
  explicit ReplacementFile(std::filesystem::path target);
  ReplacementFile(const ReplacementFile&) = delete;
  ReplacementFile& operator=(const ReplacementFile&) = delete;
  ~ReplacementFile();

  /// A failure is told by commit(): who writes an archive cannot be interrupted.
  void write(const void* bytes, std::size_t size) noexcept;
  /// Adds what check_whole() looks for to the zip archive that was written.
  void seal() noexcept;
  /// On the disk, in the place of the target.
  void commit();

 private:
  [[noreturn]] void fail(int error) const;
  void write_out(const void* bytes, std::size_t size) noexcept;

  std::filesystem::path target_;
  std::filesystem::path path_;
  int file_ = -1;
  int error_ = 0;          // of the first write that failed
  std::string held_back_;  // the last two bytes: an archive's last field is the length of its comment
  std::uint64_t sum_ = 0;
};

/// Reads a sealed zip archive through, from its beginning to its end, and stands at its beginning again.
/// @returns Whether it is known to be whole; false for an archive without a seal, which an earlier version wrote.
/// @throws UsageError  The bytes are not those that were written.
bool check_whole(std::istream& stream, const std::filesystem::path& file);

}  // namespace pianola::training

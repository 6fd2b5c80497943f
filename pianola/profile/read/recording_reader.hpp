#pragma once
#include <pianola/profile/read/recording_format.hpp>
#include <pianola/profile/read/time_check.hpp>
#include <pianola/profile/timeline.hpp>

#include <cstdint>
#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace pianola::profiling {

/// The recording of one process, read block by block.
class RecordingReader {
 public:
  /// @throws UsageError  There is no such file, or it is no recording, or one of a newer version.
  explicit RecordingReader(const std::string& path);

  [[nodiscard]] const FileHeader& header() const noexcept { return header_; }
  /// Adds all that is there, on the clock of FileHeader::wall and unsorted, and in the file's words.
  /// @throws UsageError  A record has a time that cannot be right.
  void read_into(Timeline& timeline, std::int32_t process);

  /// What read_into() found; sentences.
  [[nodiscard]] const std::vector<std::string>& notes() const noexcept { return notes_; }
  [[nodiscard]] const std::map<std::int32_t, std::string>& devices() const noexcept { return devices_; }

 private:
  bool read_block(Timeline& timeline, std::int32_t process);
  TimeSpan on_wall(TimeSpan time, std::uint32_t record);
  bool read_records(const BlockHeader& block, Timeline& timeline, std::int32_t process);
  template <class Record>
  bool read_list(const BlockHeader& block, ByteReader& from, std::vector<Record>& list, std::int32_t process);
  void note_damage();

  std::string path_;
  std::ifstream file_;
  FileHeader header_;
  TimeCheck check_;
  std::string bytes_;          // of the block at hand
  std::vector<NameId> names_;  // the timeline's, by the file's
  std::map<std::int32_t, std::string> devices_;
  std::vector<std::string> notes_;
  std::uint64_t dropped_ = 0;
  std::uint64_t position_ = 0;
  bool ended_ = false;
  bool cut_ = false;
};

}  // namespace pianola::profiling

#pragma once
#include <pianola/profile/read/recording_format.hpp>
#include <pianola/profile/timeline.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

namespace pianola::profiling {

/// Whose recording it is, and how its times relate to those of other processes.
struct RecordingStart {
  std::uint32_t process_id = 0;
  Nanoseconds clock = 0;  ///< Of the records' times.
  Nanoseconds wall = 0;   ///< Since 1970, at the same moment.
};

/// Appends the recording of a process to a file, in whole blocks: what a crash leaves can be read.
///
/// Throws nothing but std::bad_alloc: it works inside programs that know nothing of it. When the file reaches its bound,
/// or cannot be written, it takes no more records and says so. Threads: one at a time. Memory: at most kBlockBytes for
/// each kind of record, and the names.
class RecordingWriter {
 public:
  struct Opening {
    std::unique_ptr<RecordingWriter> writer;  ///< nullptr: there is none.
    std::string problem;                      ///< Why not: a sentence without its full stop.
  };
  /// @param max_bytes  Of the file; at least kSmallestRecording is taken.
  [[nodiscard]] static Opening open(const std::string& path, const RecordingStart& start, std::uint64_t max_bytes);

  RecordingWriter(const RecordingWriter&) = delete;
  RecordingWriter& operator=(const RecordingWriter&) = delete;
  /// Writes nothing: without finish() the recording counts as one whose process ended early.
  ~RecordingWriter();

  /// The id of a name in this file. Beyond kMostNames all further ones share one id; long ones are cut to kMostNameBytes.
  [[nodiscard]] NameId name(std::string_view text);

  // Names are ids of name(); processes are not kept: they follow from the file.
  void add(const DeviceWork& work) { add_record(work_, work); }
  void add(const HostCall& call) { add_record(calls_, call); }
  void add(const HostRange& range) { add_record(ranges_, range); }
  void add_device(std::int32_t number, std::string_view name);
  void add_dropped(std::uint64_t records);
  /// @param sentence  For whoever reads the recording.
  void add_note(std::string_view sentence);

  /// Writes what was added so far.
  void write();
  /// The same, and the mark that nothing is missing. Nothing may be added afterwards.
  void finish();

  /// Whether records are still taken: neither full, nor failed, nor finished.
  [[nodiscard]] bool is_taking() const noexcept { return taking_; }
  /// Why the file could not be written; empty: it could.
  [[nodiscard]] const std::string& problem() const noexcept { return problem_; }

  static constexpr std::size_t kMostNames = 100'000;
  static constexpr std::size_t kMostNameBytes = 4096;
  static constexpr std::uint64_t kSmallestRecording = 4096;

 private:
  struct Block {
    BlockKind kind;
    std::string bytes = {};
    std::uint32_t records = 0;
    Previous previous = {};
  };
  RecordingWriter(int file, std::string path, std::uint64_t max_bytes);

  template <class Record>
  void add_record(Block& block, const Record& record) {
    if (!taking_) return;
    append(block.bytes, block.previous, record);
    ++block.records;
    if (block.bytes.size() >= block_bytes_) write();
  }
  void write_block(Block& block);
  bool append_to_file(std::string_view bytes);
  void stop_because_full();

  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const noexcept { return std::hash<std::string_view>{}(text); }
  };

  int file_;
  std::string path_;
  std::uint64_t max_bytes_;
  std::size_t block_bytes_;  // of records, before they are written
  std::uint64_t written_ = 0;
  bool taking_ = true;
  bool finished_ = false;
  std::string problem_;
  std::unordered_map<std::string, NameId, Hash, std::equal_to<>> ids_;
  Block names_{.kind = BlockKind::names};
  Block work_{.kind = BlockKind::work};
  Block calls_{.kind = BlockKind::calls};
  Block ranges_{.kind = BlockKind::ranges};
};

}  // namespace pianola::profiling

#pragma once
#include <pianola/profile/show/trace_sink.hpp>
#include <pianola/profile/timeline.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace pianola::profiling {

/// `text` as a JSON string, quoted; bytes that are no UTF-8 become U+FFFD.
[[nodiscard]] std::string json_string(std::string_view text);

/// Where an event is shown: a row of the viewer.
struct Track {
  std::int64_t process = 0;
  std::int64_t thread = 0;
};

/// A Chrome trace that is being written; compressed with gzip where the file's name ends with ".gz".
class TraceOutput {
 public:
  /// @param origin  The time that becomes 0; a viewer's doubles hold no nanoseconds since 1970.
  /// @throws UsageError  The file cannot be opened for writing, or is to be compressed by a build without zlib.
  /// @param of  Whose device and unrecorded time it tells.
  TraceOutput(const std::filesystem::path& file, const Timeline& of, Nanoseconds origin);

  /// @param name  A JSON string. @param args  "\"bytes\": 16", without braces; may be empty.
  void event(Track track, std::string_view category, std::string_view name, TimeSpan time, std::string_view args);
  /// Of one moment; name and arguments as of an event.
  void instant(Track track, std::string_view category, std::string_view name, Nanoseconds time, std::string_view args);
  /// A point of the curve `series` of a process. @param name  A JSON string.
  void counter(std::int64_t process, std::string_view name, Nanoseconds time, std::string_view series,
               std::uint64_t value);
  /// An arrow between the events that begin at these times.
  void arrow(Track from, Nanoseconds begin, Track to, Nanoseconds end);
  /// Words that a viewer shows for a process or a thread; `name` is plain text.
  void name_process(std::int64_t process, std::string_view name);
  void name_thread(Track track, std::string_view name);

  /// @throws UsageError  Not all could be written.
  void finish();

 private:
  void metadata(std::string_view what, Track track, std::string_view args);
  void begin_event();
  void write();

  std::filesystem::path file_;
  std::unique_ptr<TraceSink> sink_;
  std::string pending_;
  Nanoseconds origin_;
  std::size_t events_ = 0, arrows_ = 0;
  std::int64_t sort_index_ = 0;
};

}  // namespace pianola::profiling

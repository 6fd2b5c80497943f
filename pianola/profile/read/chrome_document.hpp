#pragma once
#include <pianola/profile/timeline.hpp>

#include <cstddef>
#include <istream>
#include <string>
#include <string_view>
#include <vector>

namespace pianola::profiling {

/// Beside "traceEvents": Timeline::unrecorded, of traces that Pianola wrote or had written.
inline constexpr std::string_view kUnrecordedKey = "pianolaUnrecordedNanoseconds";

/// Beside it in traces of profile(): MemoryOfDevice::left, as a list of the device, and bytes of the driver, cached, and returnable.
inline constexpr std::string_view kMemoryLeftKey = "pianolaMemoryLeft";

/// Beside it in traces that python/pianola/_nsight.py makes of other files: Timeline::source, and notes, a list of texts.
inline constexpr std::string_view kSourceKey = "pianolaSource", kNotesKey = "pianolaNotes";

/// What stands under kMemoryLeftKey.
[[nodiscard]] std::string memory_left_text(std::int32_t device, const memory::FreeMemory& left);

/// How the text of a trace ended.
struct ChromeDocument {
  bool begins = false;             ///< With an object or an array.
  bool has_events = false;         ///< There is a list of events, which may be empty.
  std::size_t events = 0;          ///< Whole events in that list, of whatever kind.
  bool complete = false;           ///< The text is JSON to its end.
  bool cut = false;                ///< It is not, and nothing follows.
  std::size_t position = 0;        ///< Bytes read when it was found not to be.
  std::string reason;              ///< In the parser's words.
  std::vector<std::string> notes;  ///< Those beside the events.
  std::string too_large;           ///< A number at `position` that no double can hold, as it stands there.
};

/// Reads a Chrome trace, `{"traceEvents": [...], ...}` or `[...]`, into `timeline`, as far as it is JSON, and completes
/// the timeline with what was read. Timeline::source names the file in errors.
/// @throws UsageError  An event has a time that cannot be right, or the text is nested too deep.
[[nodiscard]] ChromeDocument read_chrome_document(std::istream& text, Timeline& timeline);

}  // namespace pianola::profiling

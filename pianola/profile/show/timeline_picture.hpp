#pragma once
#include <pianola/profile/analyse/analysis.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace pianola::profiling {

/// What a mark stands for; decides its colour. Calls and gaps of one cause have one colour.
enum class MarkKind : std::uint8_t { kernel, copy, memset, launch, graph, synchronization, data, device, range };
inline constexpr std::size_t kMarkKinds = 9;
[[nodiscard]] MarkKind mark_of(GapCause cause) noexcept;
/// The class that the style sheet colours it by.
[[nodiscard]] std::string_view class_of(MarkKind kind) noexcept;

/// A rectangle of the picture: one event, or several that are too short to be told apart.
struct Mark {
  TimeSpan time;  ///< Inside the picture's.
  MarkKind kind = MarkKind::kernel;
  std::size_t count = 1;
  Nanoseconds covered = 0;  ///< Sum of the durations of what it stands for, inside the picture.
  Nanoseconds longest = 0;  ///< The longest of these.
  std::size_t event = 0;    ///< That one's place in the list of its row.
};

/// A line of the picture. Its marks are sorted by begin.
struct PictureRow {
  /// Names the list that Mark::event counts in: Timeline::ranges, ::calls, Analysis::gaps, Timeline::work.
  enum class Kind : std::uint8_t { ranges, calls, gaps, work };

  Kind kind = Kind::work;
  std::int64_t lane = 0;  ///< Stream or thread.
  std::vector<Mark> marks;
  std::size_t events = 0;   ///< Before any were merged.
  Nanoseconds covered = 0;  ///< Sum of their durations.
};

/// One iteration as rows of marks, top to bottom.
struct TimelinePicture {
  TimeSpan time;
  std::size_t iteration = 0;  ///< In Analysis::iterations.
  std::vector<PictureRow> rows;
  std::size_t left_out = 0;  ///< Streams and threads with little in them, for which there was no room.
};

/// The place of the iteration whose duration is nearest to the median; 0 where there are none.
[[nodiscard]] std::size_t drawn_iteration(const Analysis& analysis);

/// The typical iteration, of the analysed device and process; the whole timeline where there are no iterations.
[[nodiscard]] TimelinePicture picture_of(const Timeline& timeline, const Analysis& analysis);

/// Merges marks that are short and close to each other, of each row so many that at most `most` are left.
void merge_marks(TimelinePicture& picture, std::size_t most);

}  // namespace pianola::profiling

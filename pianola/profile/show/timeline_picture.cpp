#include <pianola/profile/show/timeline_picture.hpp>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <iterator>
#include <map>
#include <utility>

namespace pianola::profiling {
namespace {

constexpr std::size_t kStreams = 12;  // rows of each kind at most
constexpr std::size_t kThreads = 6;
constexpr std::size_t kRangeThreads = 3;
constexpr std::size_t kRangeDepth = 5;

using RowKind = PictureRow::Kind;

MarkKind kind_of(DeviceWork::Kind kind) {
  switch (kind) {
    case DeviceWork::Kind::copy:
      return MarkKind::copy;
    case DeviceWork::Kind::memset:
      return MarkKind::memset;
    case DeviceWork::Kind::kernel:
    case DeviceWork::Kind::operation:
      break;
  }
  return MarkKind::kernel;
}

MarkKind kind_of(HostCall::Kind kind) {
  switch (kind) {
    case HostCall::Kind::graph_launch:
      return MarkKind::graph;
    case HostCall::Kind::copy:
      return MarkKind::copy;
    case HostCall::Kind::synchronize:
      return MarkKind::synchronization;
    case HostCall::Kind::launch:
    case HostCall::Kind::other:
      break;
  }
  return MarkKind::launch;
}

// Rows of one kind by their lane, while they are filled.
class Lanes {
 public:
  Lanes(RowKind kind, TimeSpan window) : kind_(kind), window_(window) {}

  void add(std::int64_t lane, TimeSpan time, MarkKind mark, std::size_t event) {
    const TimeSpan inside{.begin = std::max(time.begin, window_.begin), .end = std::min(time.end, window_.end)};
    if (inside.duration() <= 0) return;
    PictureRow& row = rows_[lane];
    row.kind = kind_;
    row.lane = lane;
    row.covered += inside.duration();
    ++row.events;
    row.marks.push_back(
        {.time = inside, .kind = mark, .covered = inside.duration(), .longest = inside.duration(), .event = event});
  }

  // Appends the rows in the order of their lanes, of more than `most` those that are covered most.
  std::size_t move_to(std::vector<PictureRow>& rows, std::size_t most) {
    std::vector<PictureRow> all;
    for (auto& [lane, row] : rows_) all.push_back(std::move(row));
    std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.covered > b.covered; });
    const std::size_t left_out = all.size() - std::min(all.size(), most);
    all.resize(all.size() - left_out);
    std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.lane < b.lane; });
    std::move(all.begin(), all.end(), std::back_inserter(rows));
    return left_out;
  }

 private:
  RowKind kind_;
  TimeSpan window_;
  std::map<std::int64_t, PictureRow> rows_;
};

// A thread's ranges lie inside each other: one row for each depth.
std::vector<PictureRow> by_depth(const Timeline& timeline, PictureRow flat) {
  std::vector<PictureRow> rows;
  std::vector<Nanoseconds> open;  // ends of the ranges around
  for (Mark& mark : flat.marks) {
    const TimeSpan& time = timeline.ranges[mark.event].time;
    while (!open.empty() && open.back() <= time.begin) open.pop_back();
    const std::size_t depth = open.size();
    open.push_back(time.end);
    if (depth >= kRangeDepth) continue;
    if (depth == rows.size()) rows.push_back({.kind = RowKind::ranges, .lane = flat.lane, .marks = {}});
    rows[depth].covered += mark.covered;
    ++rows[depth].events;
    rows[depth].marks.push_back(mark);
  }
  return rows;
}

std::size_t add_ranges(const Timeline& timeline, const Analysis& analysis, TimelinePicture& picture) {
  Lanes threads(RowKind::ranges, picture.time);
  for (std::size_t i = 0; i < timeline.ranges.size(); ++i) {
    const HostRange& range = timeline.ranges[i];
    const bool shown = range.kind == HostRange::Kind::annotation || range.kind == HostRange::Kind::module;
    if (shown && range.process == analysis.process) threads.add(range.thread, range.time, MarkKind::range, i);
  }
  std::vector<PictureRow> flat;
  const std::size_t left_out = threads.move_to(flat, kRangeThreads);
  for (PictureRow& row : flat) {
    std::vector<PictureRow> rows = by_depth(timeline, std::move(row));
    std::move(rows.begin(), rows.end(), std::back_inserter(picture.rows));
  }
  return left_out;
}

std::size_t add_calls(const Timeline& timeline, const Analysis& analysis, TimelinePicture& picture) {
  Lanes threads(RowKind::calls, picture.time);
  for (std::size_t i = 0; i < timeline.calls.size(); ++i) {
    const HostCall& call = timeline.calls[i];
    if (call.process != analysis.process || call.kind == HostCall::Kind::other) continue;
    threads.add(call.thread, call.time, kind_of(call.kind), i);
  }
  return threads.move_to(picture.rows, kThreads);
}

void add_gaps(const Analysis& analysis, TimelinePicture& picture) {
  Lanes device(RowKind::gaps, picture.time);
  for (std::size_t i = 0; i < analysis.gaps.size(); ++i) {
    device.add(analysis.device, analysis.gaps[i].time, mark_of(analysis.gaps[i].cause), i);
  }
  (void)device.move_to(picture.rows, 1);
}

std::size_t add_work(const Timeline& timeline, const Analysis& analysis, TimelinePicture& picture) {
  Lanes streams(RowKind::work, picture.time);
  for (std::size_t i = 0; i < timeline.work.size(); ++i) {
    const DeviceWork& work = timeline.work[i];
    if (work.process != analysis.process || work.device != analysis.device) continue;
    streams.add(work.stream, work.time, kind_of(work.kind), i);
  }
  return streams.move_to(picture.rows, kStreams);
}

bool can_join(const Mark& mark, const Mark& next, Nanoseconds grain) {
  return mark.time.duration() < grain && next.time.duration() < grain && next.time.begin - mark.time.begin < grain;
}

void join(Mark& mark, const Mark& next) {
  mark.time.end = std::max(mark.time.end, next.time.end);
  mark.count += next.count;
  mark.covered += next.covered;
  if (next.longest <= mark.longest) return;
  mark.longest = next.longest;
  mark.event = next.event;
  mark.kind = next.kind;
}

std::vector<Mark> merged(const std::vector<Mark>& marks, Nanoseconds grain) {
  std::vector<Mark> result;
  for (const Mark& mark : marks) {
    if (result.empty() || !can_join(result.back(), mark, grain)) {
      result.push_back(mark);
    } else {
      join(result.back(), mark);
    }
  }
  return result;
}

}  // namespace

MarkKind mark_of(GapCause cause) noexcept {
  switch (cause) {
    case GapCause::synchronization:
      return MarkKind::synchronization;
    case GapCause::data:
      return MarkKind::data;
    case GapCause::copy:
      return MarkKind::copy;
    case GapCause::device:
      return MarkKind::device;
    case GapCause::launch:
      break;
  }
  return MarkKind::launch;
}

std::string_view class_of(MarkKind kind) noexcept {
  static constexpr std::array<std::string_view, kMarkKinds> kClasses = {"k", "c", "m", "l", "g", "s", "d", "w", "r"};
  return kClasses[static_cast<std::size_t>(kind)];
}

std::size_t drawn_iteration(const Analysis& analysis) {
  const auto distance = [&](const Iteration& iteration) {
    return std::abs(iteration.time.duration() - analysis.duration);
  };
  const auto nearest =
      std::min_element(analysis.iterations.begin(), analysis.iterations.end(),
                       [&](const Iteration& a, const Iteration& b) { return distance(a) < distance(b); });
  return static_cast<std::size_t>(nearest - analysis.iterations.begin());
}

TimelinePicture picture_of(const Timeline& timeline, const Analysis& analysis) {
  TimelinePicture picture;
  picture.iteration = drawn_iteration(analysis);
  picture.time = analysis.iterations.empty() ? timeline.extent() : analysis.iterations[picture.iteration].time;
  picture.left_out += add_ranges(timeline, analysis, picture);
  picture.left_out += add_calls(timeline, analysis, picture);
  add_gaps(analysis, picture);
  picture.left_out += add_work(timeline, analysis, picture);
  return picture;
}

void merge_marks(TimelinePicture& picture, std::size_t most) {
  const Nanoseconds whole = picture.time.duration();
  const Nanoseconds finest = std::max<Nanoseconds>(whole / 16'384, 1);
  for (PictureRow& row : picture.rows) {
    // At twice the whole time all marks count as short and close, so that one is left.
    for (Nanoseconds grain = finest; row.marks.size() > most && grain <= 4 * whole; grain += grain / 4 + 1) {
      row.marks = merged(row.marks, grain);
    }
  }
}

}  // namespace pianola::profiling

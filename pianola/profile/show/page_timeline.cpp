#include <pianola/core/report_format.hpp>
#include <pianola/profile/quantities.hpp>
#include <pianola/profile/show/page_json.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace pianola::profiling {
namespace {

constexpr std::size_t kStreams = 12, kThreads = 6, kRangeThreads = 3, kRangeDepth = 5;  // rows of each kind at most
constexpr std::size_t kMostMarks = 3000;                                                // a row
constexpr std::size_t kLongestGaps = 6;
constexpr std::size_t kNameColumns = 72;

enum class Rows : std::uint8_t { ranges, calls, gaps, work };
constexpr std::array kRowNames = {"ranges", "calls", "gaps", "work"};

// A rectangle: one event, or several that are too short to be told apart. Calls and gaps of one cause have one colour.
struct Mark {
  TimeSpan time;
  char colour = 'k';
  std::size_t event = 0;                 // The longest, by its place in the list of its row.
  Nanoseconds covered = 0, longest = 0;  // Of what it stands for, inside the drawing.
  std::size_t count = 1;
};

struct PictureRow {
  Rows kind = Rows::work;
  std::int64_t lane = 0;  // Stream or thread.
  std::vector<Mark> marks;
  std::size_t events = 0;  // Before any were merged.
  Nanoseconds covered = 0;
};

char colour_of(GapCause cause) { return "lsdcw"[static_cast<std::size_t>(cause)]; }
char colour_of(DeviceWork::Kind kind) { return "kcmk"[static_cast<std::size_t>(kind)]; }
char colour_of(HostCall::Kind kind) { return "lgcsl"[static_cast<std::size_t>(kind)]; }

class Picture {
 public:
  Picture(const Timeline& timeline, const Analysis& analysis) : timeline_(timeline), analysis_(analysis) {
    const auto from_median = [&](const Iteration& i) { return std::abs(i.time.duration() - analysis.duration); };
    const auto drawn = std::ranges::min_element(analysis.iterations, {}, from_median);
    iteration_ = static_cast<std::size_t>(drawn - analysis.iterations.begin());
    time_ = analysis.iterations.empty() ? timeline.extent() : drawn->time;
    add_ranges();
    add_calls();
    add_gaps();
    add_work();
  }

  // Merges marks that are short and close to each other, of each row so many that at most `most` are left.
  void merge(std::size_t most) {
    const Nanoseconds whole = time_.duration();
    for (PictureRow& row : rows_) {
      // At twice the whole time all marks count as short and close, so that one is left.
      Nanoseconds grain = std::max<Nanoseconds>(whole / 16'384, 1);
      for (; row.marks.size() > most && grain <= 4 * whole; grain += grain / 4 + 1) merge_row(row, grain);
    }
  }

  [[nodiscard]] bool is_empty() const { return rows_.empty(); }
  [[nodiscard]] Json drawing() const;
  [[nodiscard]] std::string note() const;
  [[nodiscard]] Json legend() const;
  [[nodiscard]] Json gaps() const;
  [[nodiscard]] Json rows() const;

 private:
  using Lanes = std::map<std::int64_t, PictureRow>;

  void add(Lanes& lanes, std::int64_t lane, TimeSpan time, char colour, std::size_t event) const {
    const TimeSpan inside{.begin = std::max(time.begin, time_.begin), .end = std::min(time.end, time_.end)};
    const Nanoseconds duration = inside.duration();
    if (duration <= 0) return;
    PictureRow& row = lanes[lane];
    row.lane = lane;
    row.covered += duration;
    ++row.events;
    row.marks.push_back({.time = inside, .colour = colour, .event = event, .covered = duration, .longest = duration});
  }

  // In the order of the lanes, of more than `most` those that are covered most.
  std::vector<PictureRow> kept(Lanes lanes, Rows kind, std::size_t most) {
    std::vector<PictureRow> all;
    for (auto& [lane, row] : lanes) all.push_back(std::move(row));
    for (PictureRow& row : all) row.kind = kind;
    std::ranges::stable_sort(all, std::greater<>(), &PictureRow::covered);
    left_out_ += all.size() - std::min(all.size(), most);
    all.resize(std::min(all.size(), most));
    std::ranges::sort(all, {}, &PictureRow::lane);
    return all;
  }

  void append(std::vector<PictureRow> rows) { std::ranges::move(rows, std::back_inserter(rows_)); }

  void add_ranges() {
    Lanes threads;
    for (std::size_t i = 0; i < timeline_.ranges.size(); ++i) {
      const HostRange& range = timeline_.ranges[i];
      const bool shown = range.kind == HostRange::Kind::annotation || range.kind == HostRange::Kind::module;
      if (shown && range.process == analysis_.process) add(threads, range.thread, range.time, 'r', i);
    }
    for (const PictureRow& row : kept(std::move(threads), Rows::ranges, kRangeThreads)) append(by_depth(row));
  }

  // A thread's ranges lie inside each other: one row for each depth.
  [[nodiscard]] std::vector<PictureRow> by_depth(const PictureRow& flat) const {
    std::vector<PictureRow> rows;
    std::vector<Nanoseconds> open;  // ends of the ranges around
    for (const Mark& mark : flat.marks) {
      const TimeSpan& time = timeline_.ranges[mark.event].time;
      while (!open.empty() && open.back() <= time.begin) open.pop_back();
      const std::size_t depth = open.size();
      open.push_back(time.end);
      if (depth >= kRangeDepth) continue;
      if (depth == rows.size()) rows.push_back({.kind = Rows::ranges, .lane = flat.lane, .marks = {}});
      rows[depth].covered += mark.covered;
      ++rows[depth].events;
      rows[depth].marks.push_back(mark);
    }
    return rows;
  }

  void add_calls() {
    Lanes threads;
    for (std::size_t i = 0; i < timeline_.calls.size(); ++i) {
      const HostCall& call = timeline_.calls[i];
      if (call.process != analysis_.process || call.kind == HostCall::Kind::other) continue;
      add(threads, call.thread, call.time, colour_of(call.kind), i);
    }
    append(kept(std::move(threads), Rows::calls, kThreads));
  }

  void add_gaps() {
    Lanes device;
    for (std::size_t i = 0; i < analysis_.gaps.size(); ++i) {
      add(device, analysis_.device, analysis_.gaps[i].time, colour_of(analysis_.gaps[i].cause), i);
    }
    append(kept(std::move(device), Rows::gaps, 1));
  }

  void add_work() {
    Lanes streams;
    for (std::size_t i = 0; i < timeline_.work.size(); ++i) {
      const DeviceWork& work = timeline_.work[i];
      if (work.process != analysis_.process || work.device != analysis_.device) continue;
      add(streams, work.stream, work.time, colour_of(work.kind), i);
    }
    append(kept(std::move(streams), Rows::work, kStreams));
  }

  static void merge_row(PictureRow& row, Nanoseconds grain) {
    std::vector<Mark> result;
    for (const Mark& next : row.marks) {
      const bool joins = !result.empty() && result.back().time.duration() < grain && next.time.duration() < grain &&
                         next.time.begin - result.back().time.begin < grain;
      if (!joins) {
        result.push_back(next);
        continue;
      }
      Mark& mark = result.back();
      Mark joined = next.longest > mark.longest ? next : mark;
      joined.time = {.begin = mark.time.begin, .end = std::max(mark.time.end, next.time.end)};
      joined.count = mark.count + next.count;
      joined.covered = mark.covered + next.covered;
      mark = joined;
    }
    row.marks = std::move(result);
  }

  [[nodiscard]] std::string name(NameId name) const { return cut(timeline_.name(name), kNameColumns); }
  [[nodiscard]] std::string kernel(NameId name) const { return cut(readable(timeline_.name(name)), kNameColumns); }

  [[nodiscard]] std::string label(const PictureRow& row) const {
    if (row.kind == Rows::gaps) return "idle";
    if (row.kind == Rows::work) return fmt::format("{} {}", analysis_.device < 0 ? "thread" : "stream", row.lane);
    const bool several = std::ranges::any_of(
        rows_, [&](const PictureRow& other) { return other.kind == row.kind && other.lane != row.lane; });
    if (several) return fmt::format("{}, {}", kRowNames[static_cast<std::size_t>(row.kind)], row.lane);
    return row.kind == Rows::ranges ? "ranges" : "host calls";
  }

  [[nodiscard]] std::string event(Rows kind, std::size_t event) const {
    if (kind == Rows::ranges) return name(timeline_.ranges[event].name);
    if (kind == Rows::calls) return name(timeline_.calls[event].name);
    if (kind == Rows::gaps) {
      const Gap& gap = analysis_.gaps[event];
      return fmt::format("idle: {}{}{}", in_words(gap.cause), gap.culprit ? ", " : "",
                         gap.culprit ? name(timeline_.calls[*gap.culprit].name) : "");
    }
    const DeviceWork& work = timeline_.work[event];
    if (work.bytes == 0) return kernel(work.name);
    return fmt::format("{}, {}", kernel(work.name), format_bytes(static_cast<double>(work.bytes)));
  }

  const Timeline& timeline_;
  const Analysis& analysis_;
  TimeSpan time_;
  std::size_t iteration_ = 0, left_out_ = 0;
  std::vector<PictureRow> rows_;
};

// A mark is [begin, duration, colour, place in `names`], of several events [..., count, covered, longest].
Json Picture::drawing() const {
  Json rows = Json::array(), names = Json::array();
  std::map<std::string, std::size_t> known;
  for (const PictureRow& row : rows_) {
    Json marks = Json::array();
    for (const Mark& mark : row.marks) {
      const auto [at, is_new] = known.try_emplace(event(row.kind, mark.event), names.size());
      if (is_new) names.push_back(at->first);
      marks.push_back({mark.time.begin - time_.begin, mark.time.duration(), std::string(1, mark.colour), at->second});
      for (const Nanoseconds more : {static_cast<Nanoseconds>(mark.count), mark.covered, mark.longest}) {
        if (mark.count > 1) marks.back().push_back(more);
      }
    }
    rows.push_back({{"kind", kRowNames[static_cast<std::size_t>(row.kind)]}, {"label", label(row)}, {"marks", marks}});
  }
  return {{"duration", time_.duration()}, {"names", std::move(names)}, {"rows", std::move(rows)}};
}

// How much is drawn, and how.
std::string Picture::note() const {
  std::size_t events = 0, marks = 0;
  for (const PictureRow& row : rows_) {
    events += row.events;
    marks += row.marks.size();
  }
  const std::string duration = duration_text(time_.duration());
  std::string note = analysis_.iterations.size() < 2
                         ? fmt::format("All of {}.", duration)
                         : fmt::format("Iteration {} of {}, the one nearest to the median duration ({}).",
                                       iteration_ + 1, analysis_.iterations.size(), duration);
  if (marks < events) {
    note += fmt::format(" {} events are drawn as {} marks, short ones that are close to each other as one.",
                        count_text(static_cast<double>(events)), count_text(static_cast<double>(marks)));
  }
  if (left_out_ > 0) note += fmt::format(" Left out, with less in them: {} of the streams and threads.", left_out_);
  return note;
}

// [title, [colour, words] ...]; what does not occur is left out.
Json Picture::legend() const {
  struct Group {
    Rows rows;
    const char* title;
    std::vector<std::pair<char, const char*>> entries;
  };
  const std::array groups = {
      Group{Rows::calls,
            "Host calls",
            {{'l', "launch"}, {'g', "graph launch"}, {'c', "copy, memset"}, {'s', "synchronization"}}},
      Group{Rows::gaps,
            "Idle because of",
            {{'l', "launch"}, {'s', "synchronization"}, {'d', "data"}, {'c', "copy"}, {'w', "device"}}},
      Group{Rows::work,
            "Device",
            {{'k', analysis_.device < 0 ? "operation" : "kernel"}, {'c', "copy"}, {'m', "memset"}}}};
  Json legend = Json::array();
  for (const Group& group : groups) {
    Json items = Json::array();
    for (const auto& [colour, words] : group.entries) {
      const bool occurs = std::ranges::any_of(rows_, [&, wanted = colour](const PictureRow& row) {
        return row.kind == group.rows && std::ranges::count(row.marks, wanted, &Mark::colour) > 0;
      });
      if (occurs) items.push_back(Json::array({std::string(1, colour), words}));
    }
    if (!items.empty()) legend.push_back(Json::array({group.title, std::move(items)}));
  }
  return legend;
}

Json Picture::gaps() const {
  std::vector<Gap> longest;
  std::ranges::copy_if(analysis_.gaps, std::back_inserter(longest),
                       [&](const Gap& gap) { return time_.contains(gap.time.begin); });
  std::ranges::stable_sort(longest, std::greater<>(), [](const Gap& gap) { return gap.time.duration(); });
  longest.resize(std::min(longest.size(), kLongestGaps));
  Json rows = Json::array();
  for (const Gap& gap : longest) {
    Json cause = {{"mark", std::string(1, colour_of(gap.cause))}, {"text", in_words(gap.cause)}};
    if (gap.culprit) cause["code"] = name(timeline_.calls[*gap.culprit].name);
    const std::string next = gap.next < timeline_.work.size() ? kernel(timeline_.work[gap.next].name) : "";
    rows.push_back({{"cells", Json::array({std::move(cause),
                                           duration_text(gap.time.duration()),
                                           duration_text(gap.time.begin - time_.begin),
                                           {{"code", next}}})},
                    {"shows", {gap.time.begin - time_.begin, gap.time.end - time_.begin}}});
  }
  if (rows.empty()) return {};
  return table_json("Longest gaps of this timeline", {"Cause", "#Idle", "#From", "Ended by"}, std::move(rows));
}

// For those who do not see the drawing.
Json Picture::rows() const {
  Json rows = Json::array();
  for (const PictureRow& row : rows_) {
    const std::array content = {fmt::format("annotations and modules of thread {}", row.lane),
                                fmt::format("launching and synchronizing calls of thread {}", row.lane),
                                std::string("gaps of the device"),
                                std::string(analysis_.device < 0 ? "operations" : "kernels, copies and memsets")};
    rows.push_back({{"cells", Json::array({label(row), content[static_cast<std::size_t>(row.kind)],
                                           count_text(static_cast<double>(row.events)), duration_text(row.covered),
                                           count_text(static_cast<double>(row.marks.size()))})}});
  }
  return table_json("What the rows of the timeline hold", {"Row", "Of", "#Events", "#Time", "#Marks"}, std::move(rows));
}

}  // namespace

// Names may be long and need escapes: marks are merged until all fits.
Json timeline_json(const Timeline& timeline, const Analysis& analysis, std::size_t bytes) {
  Picture picture(timeline, analysis);
  if (picture.is_empty()) return {};
  std::size_t most = kMostMarks;
  picture.merge(most);
  Json drawing = picture.drawing();
  for (; embedded(drawing).size() > bytes && most > 1; drawing = picture.drawing()) picture.merge(most /= 2);
  return {{"heading", analysis.by == IterationsBy::nothing ? "the profile" : "one iteration"},
          {"note", picture.note()},
          {"drawing", std::move(drawing)},
          {"legend", picture.legend()},
          {"gaps", picture.gaps()},
          {"rows", picture.rows()}};
}

}  // namespace pianola::profiling

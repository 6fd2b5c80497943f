#include <pianola/profile/show/html_rows.hpp>

#include <pianola/core/report_format.hpp>
#include <pianola/profile/quantities.hpp>
#include <pianola/profile/show/html_text.hpp>

#include <fmt/format.h>

#include <algorithm>

namespace pianola::profiling {
namespace {

using Kind = PictureRow::Kind;

constexpr std::size_t kNameColumns = 72;

}  // namespace

std::string RowWords::label(const PictureRow& row) const {
  const auto another = [&](const PictureRow& other) { return other.kind == row.kind && other.lane != row.lane; };
  const bool several = std::any_of(picture_.rows.begin(), picture_.rows.end(), another);
  switch (row.kind) {
    case Kind::ranges:
      return several ? fmt::format("ranges, {}", row.lane) : "ranges";
    case Kind::calls:
      return several ? fmt::format("calls, {}", row.lane) : "host calls";
    case Kind::gaps:
      return "idle";
    case Kind::work:
      break;
  }
  return fmt::format("{} {}", analysis_.device < 0 ? "thread" : "stream", row.lane);
}

std::string RowWords::content(const PictureRow& row) const {
  switch (row.kind) {
    case Kind::ranges:
      return fmt::format("annotations and modules of thread {}", row.lane);
    case Kind::calls:
      return fmt::format("launching and synchronizing calls of thread {}", row.lane);
    case Kind::gaps:
      return "gaps of the device";
    case Kind::work:
      break;
  }
  return analysis_.device < 0 ? "operations" : "kernels, copies and memsets";
}

std::string RowWords::event(const PictureRow& row, std::size_t event) const {
  switch (row.kind) {
    case Kind::ranges:
      return name(timeline_.ranges[event].name);
    case Kind::calls:
      return name(timeline_.calls[event].name);
    case Kind::gaps: {
      const Gap& gap = analysis_.gaps[event];
      if (!gap.culprit) return fmt::format("idle: {}", in_words(gap.cause));
      return fmt::format("idle: {}, {}", in_words(gap.cause), name(timeline_.calls[*gap.culprit].name));
    }
    case Kind::work:
      break;
  }
  const DeviceWork& work = timeline_.work[event];
  if (work.bytes == 0) return kernel(work.name);
  return fmt::format("{}, {}", kernel(work.name), format_bytes(static_cast<double>(work.bytes)));
}

std::string RowWords::title(const PictureRow& row, const Mark& mark) const {
  if (mark.count == 1) {
    return fmt::format("{}\n{} from {}", event(row, mark.event), duration_text(mark.covered),
                       since_begin(mark.time.begin));
  }
  return fmt::format("{} together, {} in {} from {}\nlongest: {}, {}", mark.count, duration_text(mark.covered),
                     duration_text(mark.time.duration()), since_begin(mark.time.begin), event(row, mark.event),
                     duration_text(mark.longest));
}

std::string RowWords::name(NameId name) const { return escaped(timeline_.name(name), kNameColumns); }

std::string RowWords::kernel(NameId name) const { return escaped(readable(timeline_.name(name)), kNameColumns); }

std::string RowWords::since_begin(Nanoseconds time) const { return duration_text(time - picture_.time.begin); }

double RowWords::place(Nanoseconds time) const {
  const auto whole = static_cast<double>(std::max<Nanoseconds>(picture_.time.duration(), 1));
  return static_cast<double>(time - picture_.time.begin) / whole;
}

}  // namespace pianola::profiling

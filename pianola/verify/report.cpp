#include <pianola/verify/report.hpp>

#include <pianola/core/report.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace pianola {
namespace {

constexpr std::size_t kMostRows = 20;  // in text; JSON has all

std::string counted(std::size_t count, std::string_view one) {
  return fmt::format("{} {}{}", count, one, count == 1 ? "" : "s");
}

std::string sentence(const VerifyReport& report) {
  const std::string over = counted(static_cast<std::size_t>(report.steps), "step");
  switch (report.verdict) {
    case Verdict::equal:
      return fmt::format("equal{}: {} at each of {}",
                         report.within_tolerance ? " within the tolerance" : ", bit for bit",
                         counted(report.tensors, "tensor"), over);
    case Verdict::differs:
      return fmt::format("differs in step {}: {} of {}", report.steps, report.differences.size(),
                         counted(report.tensors, "tensor"));
    case Verdict::nondeterministic:
      return "nondeterministic: eager does not repeat itself, so nothing can be said about the graph";
    case Verdict::failed:
      return "failed: " + report.error;
  }
  return "";
}

// NaN against a number is no distance.
ReportValue ulps_value(std::int64_t ulps, bool for_people) {
  if (for_people && ulps == std::numeric_limits<std::int64_t>::max()) return "NaN";
  return ulps;
}

std::string short_number(double value) { return fmt::format("{:.3g}", value); }

ReportTable for_people(const char* key, const std::string& title, const std::vector<TensorDifference>& differences) {
  ReportTable table(
      key, title,
      {{"tensor"}, {"shape"}, {"differing"}, {"max_abs", "max abs"}, {"max_rel", "max rel"}, {"ulps"}, {"first"}});
  for (std::size_t i = 0; i < differences.size() && i < kMostRows; ++i) {
    const TensorDifference& each = differences[i];
    const std::string first = each.note.empty()    ? each.first
                              : each.first.empty() ? each.note
                                                   : each.first + "; " + each.note;
    const bool counted_out = each.note.empty();
    table.row({each.name, each.shape,
               counted_out ? fmt::format("{} of {}", each.differing, each.elements) : std::string("all"),
               counted_out ? ReportValue(short_number(each.max_absolute)) : ReportValue(),
               counted_out ? ReportValue(short_number(each.max_relative)) : ReportValue(),
               counted_out ? ulps_value(each.max_ulps, true) : ReportValue(), first});
  }
  return table;
}

ReportTable for_programs(const char* key, const std::vector<TensorDifference>& differences) {
  ReportTable table(key, "",
                    {{"name"},
                     {"role"},
                     {"step"},
                     {"shape"},
                     {"elements"},
                     {"differing"},
                     {"max_absolute"},
                     {"max_relative"},
                     {"max_ulps"},
                     {"first"},
                     {"note"}});
  for (const TensorDifference& each : differences) {
    table.row({each.name, each.role, each.step, each.shape, each.elements, each.differing, each.max_absolute,
               each.max_relative, each.max_ulps, each.first, each.note});
  }
  return table;
}

std::string in_words(const DifferenceOrigin& origin) {
  std::string text = fmt::format("operation {} ({})", origin.number, origin.op);
  if (!origin.module.empty()) text += fmt::format(", in '{}'", origin.module);
  if (origin.place.known()) text += ", " + origin.place.text();
  return text;
}

std::vector<std::string> in_words(const std::vector<MissingState>& missing) {
  std::vector<std::string> lines;
  for (const MissingState& each : missing) {
    const std::string place = each.place.known() ? ", " + each.place.text() : "";
    lines.push_back(fmt::format("{}, written by {}{}", each.shape, each.op, place));
  }
  return lines;
}

Report report_of(const DifferenceOrigin& origin) {
  Report report;
  report.fact("op", "operation", origin.op)
      .fact("number", "number", origin.number)
      .fact("module", "module", origin.module)
      .fact("function", "function", origin.place.function)
      .fact("file", "file", origin.place.file)
      .fact("line", "line", origin.place.line)
      .fact("what", "what", origin.what);
  return report;
}

ReportTable table_of(const std::vector<MissingState>& missing) {
  ReportTable table("missing_state", "", {{"shape"}, {"op"}, {"function"}, {"file"}, {"line"}});
  for (const MissingState& each : missing) {
    table.row({each.shape, each.op, each.place.function, each.place.file, each.place.line});
  }
  return table;
}

void add_times(Report& report, const VerifyReport& from) {
  report.fact("eager_us", "eager", from.eager_time.count(), "us")
      .fact("graphed_us", "graphed", from.graphed_time.count(), "us")
      .fact("total_us", "total", from.total_time.count(), "us");
}

}  // namespace

std::string_view in_words(Verdict verdict) noexcept {
  switch (verdict) {
    case Verdict::equal:
      return "equal";
    case Verdict::differs:
      return "differs";
    case Verdict::nondeterministic:
      return "nondeterministic";
    case Verdict::failed:
      return "failed";
  }
  return "";
}

int VerifyReport::exit_code() const noexcept {
  switch (verdict) {
    case Verdict::equal:
      return 0;
    case Verdict::failed:
      return 1;
    case Verdict::differs:
    case Verdict::nondeterministic:
      break;
  }
  return 3;
}

std::string VerifyReport::to_text() const {
  Report report(fmt::format("{}, eager against graphed", subject));
  report.fact("verdict", "verdict", sentence(*this));
  if (origin) report.fact("origin", "starts at", in_words(*origin)).fact("what", "", origin->what);
  add_times(report, *this);
  if (!differences.empty()) {
    report.table(for_people("differences", "Differences, nearest to the cause first", differences));
  }
  if (!eager_differences.empty()) {
    report.table(for_people("eager_differences",
                            fmt::format("Between two eager runs, in step {}", eager_differences.front().step),
                            eager_differences));
  }
  report.list("missing_state", "Written and not listed in the state", in_words(missing_state));
  std::vector<std::string> all_notes = notes;
  const std::size_t longest = std::max(differences.size(), eager_differences.size());
  if (longest > kMostRows)
    all_notes.push_back(fmt::format("the first {} of {} differences are shown", kMostRows, longest));
  report.list("notes", "Notes", std::move(all_notes));
  return report.to_text(140);
}

std::string VerifyReport::to_json(int indent) const {
  Report report;
  report.fact("subject", "", subject)
      .fact("verdict", "", in_words(verdict))
      .fact("ok", "", ok())
      .fact("steps", "", steps)
      .fact("tensors", "", tensors)
      .fact("within_tolerance", "", within_tolerance)
      .fact("error", "", error);
  report.table(for_programs("differences", differences)).table(for_programs("eager_differences", eager_differences));
  origin ? report.section("origin", report_of(*origin)) : report.fact("origin", "", ReportValue());
  report.table(table_of(missing_state)).list("notes", "", notes);
  add_times(report, *this);
  return report.to_json(indent);
}

}  // namespace pianola

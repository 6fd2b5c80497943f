#include <pianola/profile/quantities.hpp>
#include <pianola/profile/show/html_append.hpp>
#include <pianola/profile/show/html_rows.hpp>
#include <pianola/profile/show/html_sections.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <vector>

namespace pianola::profiling {
namespace {

using Kind = PictureRow::Kind;

constexpr std::size_t kMostMarks = 3000;  // a row
constexpr std::size_t kLongestGaps = 6;

// How much is drawn, and how.
std::string note_of(const TimelinePicture& picture, const Analysis& analysis) {
  std::size_t events = 0;
  std::size_t marks = 0;
  for (const PictureRow& row : picture.rows) {
    events += row.events;
    marks += row.marks.size();
  }
  std::string note;
  if (analysis.iterations.size() > 1) {
    append(note, "Iteration {} of {}, the one nearest to the median duration ({}).", picture.iteration + 1,
           analysis.iterations.size(), duration_text(picture.time.duration()));
  } else {
    append(note, "All of {}.", duration_text(picture.time.duration()));
  }
  if (marks < events) {
    append(note, " {} events are drawn as {} marks, short ones that are close to each other as one.",
           count_text(static_cast<double>(events)), count_text(static_cast<double>(marks)));
  }
  if (picture.left_out > 0)
    append(note, " Left out, with less in them: {} of the streams and threads.", picture.left_out);
  return note;
}

struct LegendEntry {
  MarkKind kind;
  std::string_view words;
};

bool is_in(const TimelinePicture& picture, Kind row_kind, MarkKind kind) {
  return std::any_of(picture.rows.begin(), picture.rows.end(), [&](const PictureRow& row) {
    return row.kind == row_kind &&
           std::any_of(row.marks.begin(), row.marks.end(), [&](const Mark& mark) { return mark.kind == kind; });
  });
}

// What does not occur is left out.
void append_legend(std::string& html, const TimelinePicture& picture, Kind row, std::string_view title,
                   std::span<const LegendEntry> entries) {
  std::string items;
  for (const LegendEntry& entry : entries) {
    if (!is_in(picture, row, entry.kind)) continue;
    append(items, " <span><i class=\"{}\"></i>{}</span>", class_of(entry.kind), entry.words);
  }
  if (!items.empty()) append(html, "<li>{}:{}</li>\n", title, items);
}

std::string legend(const TimelinePicture& picture, const Analysis& analysis) {
  std::string html = "<ul class=\"legend\">\n";
  append_legend(html, picture, Kind::calls, "Host calls",
                std::array{LegendEntry{MarkKind::launch, "launch"}, LegendEntry{MarkKind::graph, "graph launch"},
                           LegendEntry{MarkKind::copy, "copy, memset"},
                           LegendEntry{MarkKind::synchronization, "synchronization"}});
  append_legend(html, picture, Kind::gaps, "Idle because of",
                std::array{LegendEntry{MarkKind::launch, in_words(GapCause::launch)},
                           LegendEntry{MarkKind::synchronization, in_words(GapCause::synchronization)},
                           LegendEntry{MarkKind::data, in_words(GapCause::data)},
                           LegendEntry{MarkKind::copy, in_words(GapCause::copy)},
                           LegendEntry{MarkKind::device, in_words(GapCause::device)}});
  append_legend(html, picture, Kind::work, "Device",
                std::array{LegendEntry{MarkKind::kernel, analysis.device < 0 ? "operation" : "kernel"},
                           LegendEntry{MarkKind::copy, "copy"}, LegendEntry{MarkKind::memset, "memset"}});
  return html + "</ul>\n";
}

std::vector<std::size_t> longest_gaps(const Analysis& analysis, TimeSpan time) {
  std::vector<std::size_t> gaps;
  for (std::size_t i = 0; i < analysis.gaps.size(); ++i) {
    if (time.contains(analysis.gaps[i].time.begin)) gaps.push_back(i);
  }
  std::stable_sort(gaps.begin(), gaps.end(), [&](std::size_t a, std::size_t b) {
    return analysis.gaps[a].time.duration() > analysis.gaps[b].time.duration();
  });
  gaps.resize(std::min(gaps.size(), kLongestGaps));
  return gaps;
}

void append_gap(std::string& html, const Timeline& timeline, const Gap& gap, const RowWords& words) {
  const std::string culprit =
      gap.culprit ? fmt::format(" <code>{}</code>", words.name(timeline.calls[*gap.culprit].name)) : "";
  append(html,
         "<tr data-from=\"{:.6g}\" data-to=\"{:.6g}\"><th scope=\"row\"><span class=\"key\"><i "
         "class=\"{}\"></i>{}</span>{}</th>"
         "<td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"cut\"><code>{}</code></td></tr>\n",
         words.place(gap.time.begin) * kDrawingWidth, words.place(gap.time.end) * kDrawingWidth,
         class_of(mark_of(gap.cause)), in_words(gap.cause), culprit, duration_text(gap.time.duration()),
         words.since_begin(gap.time.begin),
         gap.next < timeline.work.size() ? words.kernel(timeline.work[gap.next].name) : "");
}

std::string gap_table(const Timeline& timeline, const Analysis& analysis, const TimelinePicture& picture,
                      const RowWords& words) {
  const std::vector<std::size_t> gaps = longest_gaps(analysis, picture.time);
  if (gaps.empty()) return {};
  std::string html =
      "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Longest gaps\"><table class=\"gaps\">\n"
      "<caption>Longest gaps of this timeline</caption>\n"
      "<thead><tr><th scope=\"col\">Cause</th><th scope=\"col\" class=\"n\">Idle</th>"
      "<th scope=\"col\" class=\"n\">From</th><th scope=\"col\">Ended by</th></tr></thead>\n<tbody>\n";
  for (const std::size_t gap : gaps) append_gap(html, timeline, analysis.gaps[gap], words);
  return html + "</tbody></table></div>\n";
}

// For those who do not see the drawing.
std::string row_table(const TimelinePicture& picture, const RowWords& words) {
  std::string html =
      "<details><summary>Rows in numbers</summary>\n"
      "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Rows\"><table>\n"
      "<caption>What the rows of the timeline hold</caption>\n"
      "<thead><tr><th scope=\"col\">Row</th><th scope=\"col\">Of</th><th scope=\"col\" class=\"n\">Events</th>"
      "<th scope=\"col\" class=\"n\">Time</th><th scope=\"col\" class=\"n\">Marks</th></tr></thead>\n<tbody>\n";
  for (const PictureRow& row : picture.rows) {
    append(html,
           "<tr><th scope=\"row\">{}</th><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>"
           "<td class=\"n\">{}</td></tr>\n",
           words.label(row), words.content(row), count_text(static_cast<double>(row.events)),
           duration_text(row.covered), count_text(static_cast<double>(row.marks.size())));
  }
  return html + "</tbody></table></div></details>\n";
}

// Names may be long and need escapes: marks are merged until all fits.
std::string fitting_drawing(TimelinePicture& picture, const RowWords& words, std::size_t bytes) {
  std::size_t most = kMostMarks;
  merge_marks(picture, most);
  std::string html = drawing(picture, words);
  while (html.size() > bytes && most > 1) {
    merge_marks(picture, most /= 2);
    html = drawing(picture, words);
  }
  return html;
}

}  // namespace

std::string timeline_section(const Timeline& timeline, const Analysis& analysis, std::size_t bytes) {
  TimelinePicture picture = picture_of(timeline, analysis);
  if (picture.rows.empty()) return {};
  const RowWords words(timeline, analysis, picture);
  const std::string drawn = fitting_drawing(picture, words, bytes);
  std::string html = "<section class=\"timeline\" aria-labelledby=\"timeline\">\n";
  append(html, "<h2 id=\"timeline\">Timeline of {}</h2>\n<p class=\"note\">{}</p>\n",
         analysis.by == IterationsBy::nothing ? "the profile" : "one iteration", note_of(picture, analysis));
  append(html, "<div class=\"tools\"></div>\n<figure>\n{}<figcaption>{}</figcaption>\n</figure>\n", drawn,
         legend(picture, analysis));
  html += "<p class=\"readout note\" hidden>Point at a mark for its name and times.</p>\n";
  return html + gap_table(timeline, analysis, picture, words) + row_table(picture, words) + "</section>\n";
}

}  // namespace pianola::profiling

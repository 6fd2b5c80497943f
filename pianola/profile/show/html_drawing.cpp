#include <pianola/profile/quantities.hpp>
#include <pianola/profile/show/html_append.hpp>
#include <pianola/profile/show/html_rows.hpp>

#include <algorithm>
#include <cmath>
#include <vector>

// The drawing is stretched to the width of the page and, when zoomed, beyond it. Text would be stretched with it, so
// labels and the axis are HTML that is placed over it by percentages.

namespace pianola::profiling {
namespace {

using Kind = PictureRow::Kind;

constexpr int kAxis = 24;         // pixels above the first row
constexpr int kBetween = 4;       // rows of one kind
constexpr int kApart = 12;        // rows of different kinds
constexpr double kLastTick = 95;  // percent, behind which its text would be cut
constexpr double kLabel = 4;      // percent of the width from which a range is labelled

int height_of(Kind kind) { return kind == Kind::work ? 22 : kind == Kind::gaps ? 14 : 18; }

struct PlacedRow {
  const PictureRow* row;
  int top;
};

struct Layout {
  std::vector<PlacedRow> rows;
  int height = 0;
};

Layout layout_of(const TimelinePicture& picture) {
  Layout layout;
  int top = kAxis;
  for (const PictureRow& row : picture.rows) {
    if (!layout.rows.empty()) top += layout.rows.back().row->kind == row.kind ? kBetween : kApart;
    layout.rows.push_back({&row, top});
    top += height_of(row.kind);
  }
  layout.height = top + kBetween;
  return layout;
}

void append_lanes(std::string& html, const Layout& layout, const RowWords& words) {
  html += "<div class=\"lanes\" aria-hidden=\"true\">\n";
  const PictureRow* above = nullptr;
  for (const PlacedRow& placed : layout.rows) {
    const bool same = above != nullptr && above->kind == placed.row->kind && above->lane == placed.row->lane;
    above = placed.row;
    if (same) continue;  // a deeper range
    append(html, "<span style=\"top:{}px;line-height:{}px\">{}</span>\n", placed.top, height_of(placed.row->kind),
           words.label(*placed.row));
  }
  html += "</div>\n";
}

// Of a merged mark as much of the colour as there is time covered in it, as when the events are drawn side by side.
std::string shade_of(const Mark& mark) {
  if (mark.count == 1) return {};
  const double covered =
      static_cast<double>(mark.covered) / static_cast<double>(std::max<Nanoseconds>(mark.time.duration(), 1));
  return fmt::format(" opacity=\"{:.2g}\"", std::clamp(covered, 0.15, 1.0));
}

void append_mark(std::string& html, const RowWords& words, const PictureRow& row, const Mark& mark) {
  const double x = words.place(mark.time.begin) * kDrawingWidth;
  const double width = std::max(words.place(mark.time.end) * kDrawingWidth - x, 0.1);
  append(html, "<rect class=\"{}\" x=\"{:.6g}\" width=\"{:.5g}\" height=\"{}\"{}><title>{}</title></rect>\n",
         class_of(mark.kind), x, width, height_of(row.kind), shade_of(mark), words.title(row, mark));
}

void append_svg(std::string& html, const TimelinePicture& picture, const Layout& layout, const RowWords& words) {
  append(html,
         "<svg viewBox=\"0 0 {} {}\" height=\"{}\" preserveAspectRatio=\"none\" role=\"img\" "
         "aria-label=\"Timeline of {}: ranges, host calls, idle times and device work; the tables below hold the "
         "numbers\">\n",
         kDrawingWidth, layout.height, layout.height, duration_text(picture.time.duration()));
  for (const PlacedRow& placed : layout.rows) {
    append(html, "<g class=\"row\" transform=\"translate(0 {})\">\n", placed.top);
    for (const Mark& mark : placed.row->marks) append_mark(html, words, *placed.row, mark);
    html += "</g>\n";
  }
  html += "</svg>\n";
}

// 1, 2 or 5 times a power of ten, so that there are 5 to 11 ticks.
Nanoseconds tick_step(Nanoseconds whole) {
  const double rough = std::max(static_cast<double>(whole) / 8, 1.0);
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  const double digit = rough / power;
  return static_cast<Nanoseconds>(power * (digit < 1.5 ? 1 : digit < 3.5 ? 2 : digit < 7.5 ? 5 : 10));
}

void append_ticks(std::string& html, const TimelinePicture& picture, const RowWords& words) {
  const Nanoseconds step = tick_step(picture.time.duration());
  for (Nanoseconds time = 0; time < picture.time.duration(); time += step) {
    const double left = 100 * words.place(picture.time.begin + time);
    append(html, "<span class=\"tick\" style=\"left:{:.5g}%\">{}</span>\n", left,
           left < kLastTick ? tick_text(time, step) : "");
  }
}

void append_labels(std::string& html, const PlacedRow& placed, const RowWords& words) {
  for (const Mark& mark : placed.row->marks) {
    const double left = 100 * words.place(mark.time.begin);
    const double width = 100 * words.place(mark.time.end) - left;
    if (width < kLabel || mark.count > 1) continue;
    append(html, "<span class=\"name\" style=\"left:{:.5g}%;width:{:.5g}%;top:{}px\">{}</span>\n", left, width,
           placed.top, words.event(*placed.row, mark.event));
  }
}

}  // namespace

std::string drawing(const TimelinePicture& picture, const RowWords& words) {
  const Layout layout = layout_of(picture);
  std::string html;
  append(html, "<div class=\"tracks\" style=\"height:{}px\">\n", layout.height);
  append_lanes(html, layout, words);
  append(html, "<div class=\"plot\" data-ns=\"{}\">\n", picture.time.duration());
  append_svg(html, picture, layout, words);
  html += "<div class=\"over\" aria-hidden=\"true\">\n";
  append_ticks(html, picture, words);
  for (const PlacedRow& placed : layout.rows) {
    if (placed.row->kind == Kind::ranges) append_labels(html, placed, words);
  }
  return html + "</div>\n</div>\n</div>\n";
}

}  // namespace pianola::profiling

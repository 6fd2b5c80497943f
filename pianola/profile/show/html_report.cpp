#include <pianola/profile/show/html_report.hpp>

#include <pianola/core/display_width.hpp>
#include <pianola/core/version.hpp>
#include <pianola/profile/quantities.hpp>
#include <pianola/profile/show/html_append.hpp>
#include <pianola/profile/show/html_palette.hpp>
#include <pianola/profile/show/html_script.hpp>
#include <pianola/profile/show/html_sections.hpp>
#include <pianola/profile/show/html_style.hpp>
#include <pianola/profile/show/html_text.hpp>

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace pianola {
namespace profiling {
namespace {

constexpr std::size_t kTimelineBytes = 640'000;  // of a page that stays below 1 MB
constexpr std::size_t kTitleColumns = 200;
constexpr std::size_t kMostNotes = 20;

std::string title_of(const Timeline& timeline, const HtmlOptions& options) {
  const std::string& text = options.title.empty() ? timeline.source : options.title;
  return shorten(one_line(text.empty() ? "Profile" : text), kTitleColumns);
}

// The icon is empty, else browsers ask for one; and the policy refuses whatever would be loaded.
std::string head(std::string_view title) {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src &#39;none&#39;; "
      "style-src &#39;unsafe-inline&#39;; script-src &#39;unsafe-inline&#39;; img-src data:\">\n"
      "<link rel=\"icon\" href=\"data:,\">\n<title>{} - Pianola profile</title>\n<style>\n"
      ":root{{{}}}\n@media (prefers-color-scheme:dark){{:root{{{}}}}}\n@media "
      "print{{:root{{{}}}}}{}</style>\n</head>\n",
      escaped(title), colour_declarations(false), colour_declarations(true), colour_declarations(false), kStyleSheet);
}

std::string how_iterations_were_found(const Analysis& analysis) {
  const auto found = count_text(static_cast<double>(analysis.iterations.size()));
  switch (analysis.by) {
    case IterationsBy::range:
      return fmt::format("{}, each an entry of the range <code>{}</code>", found,
                         escaped(analysis.range, kTitleColumns));
    case IterationsBy::repetition:
      return fmt::format("{}, by the sequence of kernels that repeats", found);
    case IterationsBy::nothing:
      break;
  }
  return "none found; all numbers are of the whole profile" +
         (analysis.problem.empty() ? "" : ". " + escaped(analysis.problem, 4 * kTitleColumns));
}

std::string device_words(const Timeline& timeline, const Analysis& analysis) {
  if (analysis.device < 0) return "CPU";
  if (timeline.device_name.empty()) return fmt::format("device {}", analysis.device);
  return fmt::format("{}, device {}", escaped(timeline.device_name, kTitleColumns), analysis.device);
}

std::string page(const Timeline& timeline, const Analysis& analysis, const Decision& decision,
                 const HtmlOptions& options) {
  const std::string title = title_of(timeline, options);
  std::string html = head(title);
  html += "<body>\n";
  html += verdict_header(analysis, decision, title);
  html += "<main>\n";
  html += reasons_section(decision);
  html += timeline_section(timeline, analysis, kTimelineBytes);
  html += idle_section(analysis);
  html += durations_section(analysis);
  html += scopes_section(analysis, decision);
  html += regions_section(analysis);
  html += waits_section(analysis);
  html += "</main>\n";
  html += foot(timeline, analysis);
  append(html, "<script>{}</script>\n</body>\n</html>\n", kScript);
  return html;
}

}  // namespace

std::string foot(const Timeline& timeline, const Analysis& analysis) {
  std::string html = "<footer>\n<h2>What was profiled</h2>\n<dl class=\"facts\">\n";
  const auto fact = [&html](std::string_view name, const std::string& value) {
    append(html, "<dt>{}</dt><dd>{}</dd>\n", name, value);
  };
  if (!timeline.source.empty()) fact("Source", escaped(timeline.source, 4 * kTitleColumns));
  fact("Device", device_words(timeline, analysis));
  fact("Process", fmt::format("{}", analysis.process));
  fact("Time covered", duration_text(timeline.extent().duration()));
  fact("Events",
       fmt::format("{} of devices, {} calls, {} ranges", count_text(static_cast<double>(timeline.work.size())),
                   count_text(static_cast<double>(timeline.calls.size())),
                   count_text(static_cast<double>(timeline.ranges.size()))));
  fact("Iterations", how_iterations_were_found(analysis));
  if (analysis.warmup > 0) fact("Left out", fmt::format("{} at the beginning, as warm-up", analysis.warmup));
  for (std::size_t i = 0; i < std::min(timeline.notes.size(), kMostNotes); ++i) {
    fact("Note", escaped(timeline.notes[i], 4 * kTitleColumns));
  }
  append(html, "</dl>\n<p>Pianola {}</p>\n</footer>\n", version());
  return html;
}

}  // namespace profiling

std::string to_html(const Timeline& timeline, const Analysis& analysis, const Decision& decision,
                    const HtmlOptions& options) {
  return profiling::page(timeline, analysis, decision, options);
}

}  // namespace pianola

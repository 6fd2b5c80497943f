#include <pianola/profile/quantities.hpp>
#include <pianola/profile/show/html_append.hpp>
#include <pianola/profile/show/html_sections.hpp>
#include <pianola/profile/show/html_text.hpp>
#include <pianola/profile/show/timeline_picture.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <utility>

namespace pianola::profiling {
namespace {

// Why the device is idle. While kernels wait for a copy it is busy with that: see GapCause::copy.
constexpr std::array kIdle = {GapCause::launch, GapCause::synchronization, GapCause::data, GapCause::device};
static_assert(kIdle.size() + 1 == kGapCauses);

std::string_view meaning(GapCause cause) {
  switch (cause) {
    case GapCause::launch:
      return "the host had not issued the next work yet";
    case GapCause::synchronization:
      return "the host waited for the device and issued nothing meanwhile";
    case GapCause::data:
      return "the host was loading data";
    case GapCause::copy:
      return "of the busy time, that in which kernels waited for a copy and nothing else ran";
    case GapCause::device:
      break;
  }
  return "the next work was issued long before: latency between kernels, or a dependency";
}

double share(double part, double whole) { return whole > 0 ? part / whole : 0; }

Nanoseconds rounded(double time) { return static_cast<Nanoseconds>(std::llround(time)); }

void append_part(std::string& html, std::string_view kind, std::string_view name, double time, double whole) {
  if (time <= 0) return;
  append(html, "<span class=\"{}\" style=\"width:{:.4g}%\" title=\"{}: {}, {}\"></span>\n", kind,
         100 * share(time, whole), name, percent_text(share(time, whole)), duration_text(rounded(time)));
}

double copies_of(const MeanTimes& mean) { return mean.idle[static_cast<std::size_t>(GapCause::copy)]; }

std::string idle_bar(const MeanTimes& mean) {
  std::string html;
  append(html,
         "<figure><div class=\"bar\" role=\"img\" aria-label=\"Device busy {}, idle {}; the table below splits it\">\n",
         percent_text(share(mean.busy, mean.whole)), percent_text(share(mean.all_idle, mean.whole)));
  append_part(html, "k", "busy", mean.busy - copies_of(mean), mean.whole);
  append_part(html, "c", "waiting for a copy", copies_of(mean), mean.whole);
  for (const GapCause cause : kIdle) {
    append_part(html, class_of(mark_of(cause)), in_words(cause), mean.idle[static_cast<std::size_t>(cause)],
                mean.whole);
  }
  return html + "</div></figure>\n";
}

void append_idle_row(std::string& html, GapCause cause, const MeanTimes& mean) {
  const double time = mean.idle[static_cast<std::size_t>(cause)];
  append(
      html,
      "<tr><th scope=\"row\"><span class=\"key\"><i class=\"{0}\"></i>{1}</span><span class=\"narrow\">{2}</span></th>"
      "<td class=\"wide muted\">{2}</td><td class=\"n\">{3}</td><td class=\"n\">{4}</td><td "
      "class=\"n\">{5}</td></tr>\n",
      class_of(mark_of(cause)), in_words(cause), meaning(cause), duration_text(rounded(time)),
      percent_text(share(time, mean.whole)), cause == GapCause::copy ? "" : percent_text(share(time, mean.all_idle)));
}

// Bin i of a DurationSummary is the i-th slot of the chart, from less than 1 us on.
constexpr std::size_t kFewestBins = 12;  // so that 1 ms is in sight

std::size_t bins_of(const DurationSummary& durations) {
  std::size_t last = 0;
  for (std::size_t bin = 0; bin < durations.histogram.size(); ++bin) {
    if (durations.histogram[bin] > 0) last = bin;
  }
  return std::max(last + 1, kFewestBins);
}

// Where a bin ends: "2 us", "1 ms" for 1024 us.
std::string upper_bound(std::size_t bin) {
  const std::size_t microseconds = std::size_t{1} << bin;
  if (microseconds < 1000) return fmt::format("{} us", microseconds);
  return fmt::format("{} ms", microseconds / 1000);
}

std::string bin_words(std::size_t bin) {
  if (bin == 0) return "below 1 us";
  if (bin + 1 == DurationSummary{}.histogram.size()) return fmt::format("{} and more", upper_bound(bin - 1));
  return fmt::format("{} to {}", upper_bound(bin - 1), upper_bound(bin));
}

// Where a duration stands on an axis of `bins` slots, in percent.
double place_of(double microseconds, std::size_t bins) {
  return 100 * (1 + std::log2(microseconds)) / static_cast<double>(bins);
}

void append_bars(std::string& html, const DurationSummary& durations, std::size_t bins) {
  const std::size_t highest = *std::max_element(durations.histogram.begin(), durations.histogram.end());
  append(html, "<svg viewBox=\"0 0 {} 100\" preserveAspectRatio=\"none\" aria-hidden=\"true\">\n", bins * 100);
  for (std::size_t bin = 0; bin < bins; ++bin) {
    const std::size_t kernels = durations.histogram[bin];
    if (kernels == 0) continue;
    // At least a line of a pixel, where there are any.
    const double height = std::max(86 * share(static_cast<double>(kernels), static_cast<double>(highest)), 0.6);
    append(html,
           "<rect class=\"k\" x=\"{}\" y=\"{:.4g}\" width=\"92\" height=\"{:.4g}\"><title>{}: {}</title></rect>\n",
           bin * 100 + 4, 100 - height, height, bin_words(bin), count_text(static_cast<double>(kernels)));
  }
  html += "</svg>\n";
  for (std::size_t bin = 0; bin < bins; ++bin) {
    const std::size_t kernels = durations.histogram[bin];
    if (kernels == 0) continue;
    const double height = 86 * share(static_cast<double>(kernels), static_cast<double>(highest));
    append(html, "<span class=\"value\" style=\"left:{:.4g}%;bottom:{:.4g}%\">{}</span>\n",
           100 * (static_cast<double>(bin) + 0.5) / static_cast<double>(bins), height + 1,
           percent_text(share(static_cast<double>(kernels), static_cast<double>(durations.kernels))));
  }
}

std::string histogram(const DurationSummary& durations) {
  const std::size_t bins = bins_of(durations);
  std::string html =
      "<figure><div class=\"histogram\" role=\"img\" aria-label=\"Histogram of kernel durations; the table below holds "
      "the numbers\">\n";
  for (const auto& [microseconds, words] : {std::pair{50.0, "50 us"}, std::pair{1000.0, "1 ms"}}) {
    const double place = place_of(microseconds, bins);
    append(html, "<span class=\"limit{}\" style=\"left:{:.4g}%\">{}</span>\n", place > 80 ? " end" : "", place, words);
  }
  append_bars(html, durations, bins);
  for (std::size_t bin = 0; bin + 1 < bins; ++bin) {
    append(html, "<span class=\"edge{}\" style=\"left:{:.4g}%\">{}</span>\n", bin % 2 == 0 ? "" : " odd",
           100 * static_cast<double>(bin + 1) / static_cast<double>(bins), upper_bound(bin));
  }
  return html + "</div></figure>\n";
}

std::string histogram_table(const DurationSummary& durations) {
  std::string html =
      "<details><summary>Durations in numbers</summary>\n<table><caption>Kernels by duration</caption>\n"
      "<thead><tr><th scope=\"col\">Duration</th><th scope=\"col\" class=\"n\">Kernels</th>"
      "<th scope=\"col\" class=\"n\">Of all</th></tr></thead>\n<tbody>\n";
  for (std::size_t bin = 0; bin < durations.histogram.size(); ++bin) {
    const auto kernels = static_cast<double>(durations.histogram[bin]);
    if (kernels == 0) continue;
    append(html, "<tr><th scope=\"row\">{}</th><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>\n", bin_words(bin),
           count_text(kernels), percent_text(share(kernels, static_cast<double>(durations.kernels))));
  }
  return html + "</tbody></table></details>\n";
}

}  // namespace

MeanTimes mean_times(const Analysis& analysis) {
  MeanTimes mean;
  for (std::size_t cause = 0; cause < kGapCauses; ++cause) {
    mean.idle[cause] = static_cast<double>(analysis.idle[cause]);
  }
  mean.busy = static_cast<double>(analysis.busy);  // the median, where there is nothing to take the mean of
  if (!analysis.iterations.empty()) {
    const auto add = [](double sum, const Iteration& iteration) { return sum + static_cast<double>(iteration.busy); };
    mean.busy = std::accumulate(analysis.iterations.begin(), analysis.iterations.end(), 0.0, add) /
                static_cast<double>(analysis.iterations.size());
  }
  mean.all_idle = std::accumulate(mean.idle.begin(), mean.idle.end(), 0.0) - copies_of(mean);
  mean.whole = mean.busy + mean.all_idle;
  return mean;
}

std::string idle_section(const Analysis& analysis) {
  const MeanTimes mean = mean_times(analysis);
  if (mean.whole <= 0) return {};
  std::string html = "<section aria-labelledby=\"idle\">\n<h2 id=\"idle\">Where the idle time comes from</h2>\n";
  html += idle_bar(mean);
  append(html,
         "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Idle time by cause\"><table>\n"
         "<caption>Time of the device {}</caption>\n"
         "<thead><tr><th scope=\"col\">Cause</th><th scope=\"col\" class=\"wide\">Meaning</th><th scope=\"col\" "
         "class=\"n\">Time</th>"
         "<th scope=\"col\" class=\"n\">Share</th><th scope=\"col\" class=\"n\">Of idle</th></tr></thead>\n<tbody>\n",
         each(analysis));
  for (const GapCause cause : kIdle) append_idle_row(html, cause, mean);
  append(html,
         "</tbody>\n<tfoot><tr class=\"sum\"><th scope=\"row\">idle</th><td class=\"wide\"></td><td class=\"n\">{}</td>"
         "<td class=\"n\">{}</td><td class=\"n\">{}</td></tr>\n",
         duration_text(rounded(mean.all_idle)), percent_text(share(mean.all_idle, mean.whole)),
         percent_text(mean.all_idle > 0 ? 1 : 0));
  append(html,
         "<tr><th scope=\"row\"><span class=\"key\"><i class=\"k\"></i>busy</span></th><td class=\"wide muted\">at "
         "least one stream had work</td>"
         "<td class=\"n\">{}</td><td class=\"n\">{}</td><td></td></tr>\n",
         duration_text(rounded(mean.busy)), percent_text(share(mean.busy, mean.whole)));
  append_idle_row(html, GapCause::copy, mean);
  return html + "</tfoot>\n</table></div>\n</section>\n";
}

std::string durations_section(const Analysis& analysis) {
  const DurationSummary& durations = analysis.durations;
  if (durations.kernels == 0) return {};
  std::string html = "<section aria-labelledby=\"durations\">\n<h2 id=\"durations\">How long kernels run</h2>\n";
  html += unbroken(fmt::format(
      "<p class=\"note\">{} kernels, the median {}, the longest {}. {} are shorter than 50 us; kernels of 1 ms or more "
      "take "
      "{} of the kernels&#39; time.</p>\n",
      count_text(static_cast<double>(durations.kernels)), duration_text(durations.median),
      duration_text(durations.longest), percent_text(durations.share_small), percent_text(durations.share_long)));
  return html + histogram(durations) + histogram_table(durations) + "</section>\n";
}

}  // namespace pianola::profiling

#include <pianola/profile/quantities.hpp>
#include <pianola/profile/show/html_append.hpp>
#include <pianola/profile/show/html_sections.hpp>
#include <pianola/profile/show/html_text.hpp>

#include <algorithm>
#include <cstddef>
#include <span>

namespace pianola::profiling {
namespace {

constexpr std::size_t kShownRegions = 50;  // the rest is folded
constexpr std::size_t kMostRegions = 200;
constexpr std::size_t kMostWaits = 40;
constexpr std::size_t kCellColumns = 160;

std::string_view words_of(HostRange::Kind kind) {
  switch (kind) {
    case HostRange::Kind::operation:
      return "operation";
    case HostRange::Kind::backward:
      return "autograd node";
    case HostRange::Kind::module:
      return "module";
    case HostRange::Kind::annotation:
      break;
  }
  return "annotation";
}

// What a name begins with because of its kind, which has a column of its own.
std::string_view own_name(const Region& region) {
  std::string_view name = region.name;
  for (const std::string_view prefix : {"autograd::engine::evaluate_function: ", "nn.Module: "}) {
    const bool of_kind = region.kind == HostRange::Kind::backward || region.kind == HostRange::Kind::module;
    if (of_kind && name.size() > prefix.size() && name.substr(0, prefix.size()) == prefix) {
      name.remove_prefix(prefix.size());
    }
  }
  return name;
}

// Where ranges lie inside each other, so do their idle times: the bars are shares of the largest.
void append_region(std::string& html, const Region& region, Nanoseconds most_idle) {
  const double bar = most_idle > 0 ? static_cast<double>(region.idle) / static_cast<double>(most_idle) : 0;
  append(html,
         "<tr><th scope=\"row\"><code>{}</code></th><td>{}</td><td class=\"n\" data-v=\"{}\">{}</td>"
         "<td class=\"n\" data-v=\"{:.6g}\">{}</td><td class=\"n\" data-v=\"{}\">{}</td>"
         "<td class=\"n share\" data-v=\"{}\">{}<i style=\"transform:scaleX({:.3g})\"></i></td></tr>\n",
         escaped(own_name(region), kCellColumns), words_of(region.kind), region.entries,
         count_text(static_cast<double>(region.entries)), region.kernels, count_text(region.kernels), region.busy,
         duration_text(region.busy), region.idle, duration_text(region.idle), bar);
}

std::string region_table(std::span<const Region> regions, std::string_view caption, Nanoseconds most_idle) {
  std::string html;
  append(html,
         "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{0}\"><table>\n<caption>{0}</caption>\n"
         "<thead><tr><th scope=\"col\">Region</th><th scope=\"col\">Kind</th><th scope=\"col\" class=\"n\">Entries</th>"
         "<th scope=\"col\" class=\"n\">Kernels</th><th scope=\"col\" class=\"n\">Busy</th>"
         "<th scope=\"col\" class=\"n\" aria-sort=\"descending\">Idle</th></tr></thead>\n<tbody>\n",
         caption);
  for (const Region& region : regions) append_region(html, region, most_idle);
  return html + "</tbody></table></div>\n";
}

}  // namespace

std::string regions_section(const Analysis& analysis) {
  if (analysis.regions.empty()) return {};
  const std::span<const Region> all(analysis.regions.data(), std::min(analysis.regions.size(), kMostRegions));
  const std::span<const Region> shown = all.first(std::min(all.size(), kShownRegions));
  const std::span<const Region> rest = all.subspan(shown.size());
  const auto less_idle = [](const Region& a, const Region& b) { return a.idle < b.idle; };
  const Nanoseconds most_idle = std::max_element(all.begin(), all.end(), less_idle)->idle;

  std::string html =
      "<section class=\"regions\" aria-labelledby=\"regions\">\n<h2 id=\"regions\">Regions that waste most</h2>\n";
  append(
      html,
      "<p class=\"note\">Idle is the time that the device waited for work issued inside the region. Regions lie inside "
      "each other, so that the times do not add up.</p>\n");
  html += region_table(shown, fmt::format("Regions {}, those with most idle time first", each(analysis)), most_idle);
  if (!rest.empty()) {
    append(html, "<details><summary>Further regions ({})</summary>\n{}</details>\n", rest.size(),
           region_table(rest, "Further regions", most_idle));
  }
  return html + "</section>\n";
}

std::string waits_section(const Analysis& analysis) {
  if (analysis.waits.empty()) return {};
  std::string html = "<section aria-labelledby=\"waits\">\n<h2 id=\"waits\">Waits for the device</h2>\n";
  append(html,
         "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Waits\"><table>\n"
         "<caption>Calls that waited for the device and left it idle, {}</caption>\n"
         "<thead><tr><th scope=\"col\">Call</th><th scope=\"col\">Inside</th><th scope=\"col\" class=\"n\">Calls</th>"
         "<th scope=\"col\" class=\"n\">Idle</th></tr></thead>\n<tbody>\n",
         each(analysis));
  const std::size_t shown = std::min(analysis.waits.size(), kMostWaits);
  for (const Wait& wait : std::span(analysis.waits).first(shown)) {
    append(html,
           "<tr><th scope=\"row\"><code>{}</code></th><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>\n",
           escaped(wait.call, kCellColumns), escaped(wait.inside, kCellColumns), count_text(wait.per_iteration),
           duration_text(wait.idle));
  }
  html += "</tbody></table></div>\n";
  if (analysis.waits.size() > shown) {
    append(html, "<p class=\"note\">Further calls with less idle time: {}.</p>\n", analysis.waits.size() - shown);
  }
  return html + "</section>\n";
}

}  // namespace pianola::profiling

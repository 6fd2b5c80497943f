#include <pianola/profile/quantities.hpp>
#include <pianola/profile/show/html_append.hpp>
#include <pianola/profile/show/html_sections.hpp>
#include <pianola/profile/show/html_text.hpp>

#include <algorithm>
#include <cmath>
#include <vector>

namespace pianola::profiling {
namespace {

struct VerdictMark {
  std::string_view style, words;
};

VerdictMark mark_of_verdict(GraphVerdict verdict) {
  switch (verdict) {
    case GraphVerdict::graph:
      return {"good", "Graph it"};
    case GraphVerdict::small_gain:
      return {"caution", "Small gain"};
    case GraphVerdict::leave:
      return {"neutral", "Leave it"};
    case GraphVerdict::graphed:
      return {"done", "Graphed already"};
    case GraphVerdict::unknown:
      break;
  }
  return {"neutral", "Cannot be told"};
}

struct Tile {
  std::string label, value, remark;
};

// Of a GPU: operations of the CPU are slowed by a profiler themselves.
bool has_unrecorded(const Analysis& analysis) {
  return analysis.device >= 0 && analysis.unrecorded != analysis.duration;
}

Tile time_tile(const Analysis& analysis) {
  if (analysis.by == IterationsBy::nothing) return {"Time profiled", duration_text(analysis.duration), "no iterations"};
  if (analysis.iterations.size() < 2) return {"Iteration", duration_text(analysis.duration), "one iteration"};
  if (has_unrecorded(analysis)) {
    return {"Iteration", duration_text(analysis.unrecorded),
            fmt::format("{} while it was recorded", duration_text(analysis.duration))};
  }
  return {"Iteration", duration_text(analysis.duration),
          fmt::format("median of {}, ± {}", analysis.iterations.size(), percent_text(analysis.jitter))};
}

Tile launches_tile(const Analysis& analysis) {
  const std::string calls = count_text(analysis.launches);
  Tile tile{"In launch calls", duration_text(analysis.in_launches),
            fmt::format("of the host, {} {}", calls, calls == "1" ? "call" : "calls")};
  if (analysis.graph_launches > 0) append(tile.remark, " (graphs: {})", count_text(analysis.graph_launches));
  return tile;
}

Tile speedup_tile(const Decision& decision) {
  if (decision.best >= decision.scopes.size() || decision.scopes[decision.best].expected <= 0) {
    return {"Expected speed-up", "-",
            decision.verdict == GraphVerdict::graphed ? "graphs are in use" : "not predicted"};
  }
  const ScopePrediction& best = decision.scopes[decision.best];
  return {"Expected speed-up", factor_text(best.speedup),
          fmt::format("{}, {}", duration_text(best.expected), in_words(best.scope))};
}

Tile idle_tile(const Analysis& analysis) {
  if (has_unrecorded(analysis)) {
    return {"Device idle", duration_text(std::max<Nanoseconds>(analysis.unrecorded - analysis.busy, 0)),
            fmt::format("{} of the time", percent_text(1 - analysis.utilisation))};
  }
  const MeanTimes mean = mean_times(analysis);
  return {"Device idle", duration_text(static_cast<Nanoseconds>(std::llround(mean.all_idle))),
          fmt::format("{} of the time", percent_text(mean.whole > 0 ? mean.all_idle / mean.whole : 0))};
}

std::vector<Tile> tiles_of(const Analysis& analysis, const Decision& decision) {
  return {
      time_tile(analysis),
      {"Device utilisation", percent_text(analysis.utilisation), fmt::format("busy {}", duration_text(analysis.busy))},
      idle_tile(analysis),
      {"Kernels", count_text(analysis.kernels), fmt::format("median {}", duration_text(analysis.durations.median))},
      launches_tile(analysis),
      speedup_tile(decision)};
}

std::string sentences(std::string_view style, const std::vector<std::string>& list) {
  std::string html;
  append(html, "<ul class=\"sentences{}\">\n", style);
  for (const std::string& sentence : list) append(html, "<li>{}</li>\n", unbroken(escaped(sentence)));
  return html + "</ul>\n";
}

}  // namespace

std::string verdict_header(const Analysis& analysis, const Decision& decision, std::string_view title) {
  const VerdictMark mark = mark_of_verdict(decision.verdict);
  std::string html;
  append(html, "<header>\n<p class=\"title\">{}</p>\n<p class=\"mark {}\">{}</p>\n<h1>{}</h1>\n<dl class=\"tiles\">\n",
         escaped(title), mark.style, mark.words, unbroken(escaped(decision.headline)));
  for (const Tile& tile : tiles_of(analysis, decision)) {
    append(html, "<div><dt>{}</dt><dd>{}</dd><dd>{}</dd></div>\n", tile.label, tile.value, tile.remark);
  }
  return html + "</dl>\n</header>\n";
}

std::string reasons_section(const Decision& decision) {
  if (decision.reasons.empty() && decision.obstacles.empty()) return {};
  std::string html = "<section class=\"columns\" aria-label=\"Reasons and obstacles\">\n";
  if (!decision.reasons.empty()) append(html, "<div><h2>Reasons</h2>\n{}</div>\n", sentences("", decision.reasons));
  if (!decision.obstacles.empty()) {
    append(html, "<div><h2>In the way</h2>\n{}</div>\n", sentences(" hindering", decision.obstacles));
  }
  return html + "</section>\n";
}

}  // namespace pianola::profiling

#include <pianola/core/report_format.hpp>
#include <pianola/profile/quantities.hpp>
#include <pianola/profile/show/html_append.hpp>
#include <pianola/profile/show/html_sections.hpp>
#include <pianola/profile/show/html_text.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace pianola::profiling {
namespace {

constexpr double kRoom = 1.04;  // the chart reaches a little beyond what is longest

bool can_be_told(const ScopePrediction& scope) { return scope.expected > 0; }

std::string_view state_of(const Decision& decision, std::size_t scope) {
  if (!decision.scopes[scope].obstacle.empty()) return " hindered";
  return scope == decision.best ? " best" : "";
}

// Percent of the width of the chart.
class Scale {
 public:
  Scale(const Analysis& analysis, const Decision& decision) : longest_(static_cast<double>(analysis.unrecorded)) {
    for (const ScopePrediction& scope : decision.scopes) longest_ = std::max(longest_, static_cast<double>(scope.high));
    longest_ = std::max(longest_ * kRoom, 1.0);
  }
  [[nodiscard]] double operator()(Nanoseconds time) const { return 100 * static_cast<double>(time) / longest_; }

 private:
  double longest_;
};

void append_scope(std::string& html, const Decision& decision, std::size_t index, const Scale& scale, double now) {
  const ScopePrediction& scope = decision.scopes[index];
  append(html, "<div class=\"scope{}\"><span class=\"what\">{}</span><div class=\"track\">\n",
         state_of(decision, index), in_words(scope.scope));
  html += "<svg viewBox=\"0 0 100 36\" preserveAspectRatio=\"none\">\n";
  if (can_be_told(scope)) {
    append(html, "<rect class=\"expected\" y=\"9\" width=\"{:.4g}\" height=\"18\"></rect>\n", scale(scope.expected));
    const double low = scale(scope.low);
    const double high = scale(scope.high);
    for (const char* style : {"halo", "interval"}) {
      append(html, "<path class=\"{0}\" d=\"M{1:.4g} 18H{2:.4g}M{1:.4g} 12v12M{2:.4g} 12v12\"></path>\n", style, low,
             high);
    }
  }
  append(html, "</svg><span class=\"now\" style=\"left:{:.4g}%\"></span></div>\n", now);
  if (can_be_told(scope)) {
    append(html, "<span class=\"value\">{}, {}</span></div>\n", duration_text(scope.expected),
           factor_text(scope.speedup));
  } else {
    html += "<span class=\"value muted\">unknown</span></div>\n";
  }
}

std::string chart(const Analysis& analysis, const Decision& decision) {
  const Scale scale(analysis, decision);
  const double now = scale(analysis.unrecorded);
  std::string html =
      "<figure><div class=\"scopes\" role=\"img\" aria-label=\"Predicted time of an iteration by scope; the table "
      "below "
      "holds the numbers\">\n";
  append(html,
         "<div class=\"scope head\"><span class=\"what\"></span><div class=\"track\"><span "
         "style=\"right:{:.4g}%\">now {}</span></div><span class=\"value\"></span></div>\n",
         100 - now, duration_text(analysis.unrecorded));
  for (std::size_t i = 0; i < decision.scopes.size(); ++i) append_scope(html, decision, i, scale, now);
  return html + "</div></figure>\n";
}

void append_row(std::string& html, const Decision& decision, std::size_t index) {
  const ScopePrediction& scope = decision.scopes[index];
  append(html, "<tr{}><th scope=\"row\">{}</th>", index == decision.best ? " class=\"best\"" : "",
         in_words(scope.scope));
  if (can_be_told(scope)) {
    append(html, "<td class=\"n\">{}</td><td class=\"n\">{} to {}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>",
           duration_text(scope.expected), duration_text(scope.low), duration_text(scope.high),
           factor_text(scope.speedup), count_text(scope.host_launches));
  } else {
    html += "<td class=\"n\">-</td><td class=\"n\">-</td><td class=\"n\">-</td><td class=\"n\">-</td>";
  }
  append(html, "<td>{}</td></tr>\n", scope.obstacle.empty() ? "nothing seen" : escaped(scope.obstacle));
}

std::string table(const Analysis& analysis, const Decision& decision) {
  std::string html =
      "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Scopes\"><table>\n"
      "<caption>Predicted iteration time by what the graph takes in</caption>\n"
      "<thead><tr><th scope=\"col\">Scope</th><th scope=\"col\" class=\"n\">Expected</th>"
      "<th scope=\"col\" class=\"n\">Between</th><th scope=\"col\" class=\"n\">Speed-up</th>"
      "<th scope=\"col\" class=\"n\">Launch calls</th><th scope=\"col\">In the way</th></tr></thead>\n<tbody>\n";
  append(html,
         "<tr><th scope=\"row\">as it is</th><td class=\"n\">{}</td><td></td><td class=\"n\">{}</td>"
         "<td class=\"n\">{}</td><td></td></tr>\n",
         duration_text(analysis.unrecorded), factor_text(1), count_text(analysis.launches));
  for (std::size_t i = 0; i < decision.scopes.size(); ++i) append_row(html, decision, i);
  return html + "</tbody></table></div>\n";
}

std::string bytes_text(std::uint64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

void append_memory_row(std::string& html, const Decision& decision, std::size_t index) {
  const ScopePrediction& scope = decision.scopes[index];
  append(html, "<tr{}><th scope=\"row\">{}</th>", index == decision.best ? " class=\"best\"" : "",
         in_words(scope.scope));
  if (can_be_told(scope)) {
    append(html, "<td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>\n",
           scope.memory.pool ? bytes_text(*scope.memory.pool) : "-", bytes_text(scope.memory.inputs),
           bytes_text(scope.memory.executables));
  } else {
    html += "<td class=\"n\">-</td><td class=\"n\">-</td><td class=\"n\">-</td></tr>\n";
  }
}

std::string memory_words(const Analysis& analysis, const Decision& decision) {
  const std::string nodes = fmt::format("Executables are reckoned with {} for each kernel, copy and memset.",
                                        bytes_text(decision.model.node_bytes));
  if (!analysis.memory) return fmt::format("{} As for the pool, {}.", nodes, escaped(decision.memory_unknown, 1000));
  return fmt::format("An iteration as it is allocates up to {} of its own at a time. {}",
                     bytes_text(analysis.memory->own), nodes);
}

std::string memory_table(const Analysis& analysis, const Decision& decision) {
  std::string html =
      "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Memory\"><table>\n"
      "<caption>Device memory by what the graph takes in</caption>\n"
      "<thead><tr><th scope=\"col\">Scope</th><th scope=\"col\" class=\"n\">Pool</th>"
      "<th scope=\"col\" class=\"n\">Inputs</th><th scope=\"col\" class=\"n\">Executables</th></tr></thead>\n"
      "<tbody>\n";
  for (std::size_t i = 0; i < decision.scopes.size(); ++i) append_memory_row(html, decision, i);
  html += "</tbody></table></div>\n";
  return html + unbroken(fmt::format("<p class=\"note\">{}</p>\n", memory_words(analysis, decision)));
}

void append_code(std::string& html, std::string_view language, const std::string& code) {
  if (code.empty()) return;
  append(html,
         "<div class=\"code\"><div><span>{0}</span></div><pre tabindex=\"0\" aria-label=\"{0}\"><code>{1}</code></pre>"
         "</div>\n",
         language, escaped(code));
}

void append_calls(std::string& html, const ScopePrediction& scope) {
  html += "<div class=\"columns\">\n";
  append_code(html, "Python", scope.python);
  append_code(html, "C++", scope.cpp);
  html += "</div>\n";
}

bool has_calls(const ScopePrediction& scope) { return !scope.cpp.empty() || !scope.python.empty(); }

std::string calls(const Decision& decision) {
  std::string html;
  if (decision.best < decision.scopes.size() && has_calls(decision.scopes[decision.best])) {
    const ScopePrediction& best = decision.scopes[decision.best];
    append(html, "<h3 class=\"call\">The call to write: {}</h3>\n", in_words(best.scope));
    append_calls(html, best);
  }
  std::string others;
  for (std::size_t i = 0; i < decision.scopes.size(); ++i) {
    if (i == decision.best || !has_calls(decision.scopes[i])) continue;
    append(others, "<h3>{}</h3>\n", in_words(decision.scopes[i].scope));
    append_calls(others, decision.scopes[i]);
  }
  if (!others.empty()) append(html, "<details><summary>Calls for the other scopes</summary>\n{}</details>\n", others);
  return html;
}

std::string model_note(const MachineModel& model) {
  return unbroken(
      fmt::format("<p class=\"note\">Reckoned with {} of host time for an operation issued eagerly, {} to launch a "
                  "graph, {} to call "
                  "a graphed callable, and {} ({} to {}) of device time between two kernels of a graph.</p>\n",
                  duration_text(model.launch), duration_text(model.graph_launch), duration_text(model.callable),
                  duration_text(model.node), duration_text(model.node_low), duration_text(model.node_high)));
}

}  // namespace

std::string scopes_section(const Analysis& analysis, const Decision& decision) {
  if (decision.scopes.empty()) return {};
  return "<section aria-labelledby=\"scopes\">\n<h2 id=\"scopes\">What to graph</h2>\n" + model_note(decision.model) +
         chart(analysis, decision) + table(analysis, decision) + memory_table(analysis, decision) + calls(decision) +
         "</section>\n";
}

}  // namespace pianola::profiling

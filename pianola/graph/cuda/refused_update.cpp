#include <pianola/graph/cuda/refused_update.hpp>

#include <pianola/core/plural.hpp>
#include <pianola/graph/update_check.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace pianola::graph {
namespace {

// An operation at fault, and what it made.
struct Culprit {
  const OpRecord* op;
  std::string made;
};

// Where it made more or fewer nodes, those behind it are paired with others': CUDA may name any of these, or none.
std::optional<Culprit> with_other_count(const OpTrace& captured, const OpTrace& now) {
  const std::vector<const OpRecord*> before = repeated_operations(captured), after = repeated_operations(now);
  for (std::size_t i = 0; i < std::min(before.size(), after.size()); ++i) {
    const std::size_t was = captured.nodes(*before[i]).size(), is = now.nodes(*after[i]).size();
    if (was == is) continue;
    return Culprit{.op = after[i],
                   .made = fmt::format("{} node{}, and {} in the earlier capture", is, plural(is), was)};
  }
  return std::nullopt;
}

std::optional<Culprit> that_made(const UpdateRefusal& refusal, const OpTrace& now) {
  for (const OpRecord& op : now.ops()) {
    const auto nodes = now.nodes(op);
    if (refusal.node == nullptr || std::find(nodes.begin(), nodes.end(), refusal.node) == nodes.end()) continue;
    return Culprit{.op = &op, .made = refusal.node_text};
  }
  return std::nullopt;
}

}  // namespace

Diagnosis explain_refused_update(const UpdateRefusal& refusal, const OpTrace& captured, const OpTrace& now) {
  std::optional<Culprit> culprit = with_other_count(captured, now);
  if (!culprit) culprit = that_made(refusal, now);
  Diagnosis diagnosis{.what = fmt::format("update() cannot give the executable what {} makes now: {}; the earlier "
                                          "capture stays, and replays as before",
                                          culprit ? now.name(*culprit->op) : "the step", refusal.reason),
                      .where = {},
                      .fix = kCaptureAnew};
  if (culprit) {
    diagnosis.where = fmt::format("{}: {}", place_of(now, *culprit->op), culprit->made);
  } else if (!refusal.node_text.empty()) {
    diagnosis.where = refusal.node_text + ", which no operation of the step launched";
  }
  return diagnosis;
}

std::optional<Diagnosis> explain_other_copies(std::size_t captured, std::size_t now) {
  if (captured == now) return std::nullopt;
  return Diagnosis{
      .what =
          fmt::format("update() was given inputs of which the graph copies {}, and {} in the earlier capture: it has "
                      "no node for those that are empty or not dense; the earlier capture stays, and replays as before",
                      now, captured),
      .fix = "pass inputs that are dense and not empty where the earlier ones are, or call reset() and capture()"};
}

}  // namespace pianola::graph

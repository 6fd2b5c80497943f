#include <pianola/callable/graphed_layers.hpp>

#include <pianola/core/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

namespace pianola {
namespace {

// Of all signatures together.
std::string state_of(const GraphedInfo& info) {
  if (info.signatures.empty()) return "not called";
  const auto any = [&](GraphedState state) {
    return std::any_of(info.signatures.begin(), info.signatures.end(),
                       [&](const SignatureInfo& one) { return one.state == state; });
  };
  for (const GraphedState state : {GraphedState::captured, GraphedState::warming_up}) {
    if (any(state)) return std::string(to_string(state));
  }
  return std::string(to_string(GraphedState::eager));
}

// One line for each reason: "layers.0 and 11 others: reason".
std::vector<std::string> reasons_of(const std::vector<LayersInfo::Layer>& layers) {
  struct Reason {
    std::string text, first;
    std::size_t others = 0;
  };
  std::vector<Reason> reasons;
  for (const LayersInfo::Layer& layer : layers) {
    std::vector<std::string> told;
    for (const SignatureInfo& one : layer.info.signatures) {
      if (one.reason.empty() || std::find(told.begin(), told.end(), one.reason) != told.end()) continue;
      told.push_back(one.reason);
      const auto known =
          std::find_if(reasons.begin(), reasons.end(), [&](const Reason& other) { return other.text == one.reason; });
      if (known == reasons.end()) {
        reasons.push_back({.text = one.reason, .first = layer.name});
      } else {
        ++known->others;
      }
    }
  }
  std::vector<std::string> lines;
  for (const Reason& one : reasons) {
    const std::string others =
        one.others == 0 ? "" : fmt::format(" and {} other{}", one.others, one.others == 1 ? "" : "s");
    lines.push_back(fmt::format("{}{}: {}", one.first, others, one.text));
  }
  return lines;
}

}  // namespace

Report LayersInfo::report() const {
  Report report("Graphed layers");
  const auto count = [](auto value) { return static_cast<std::int64_t>(value); };
  ReportTable table("layers", "By layer", {{"layer"}, {"state"}, {"signatures"}, {"graphs"}, {"replays"}, {"eager"}});
  std::size_t captured = 0;
  for (const Layer& layer : layers) {
    std::size_t graphs = 0, replays = 0, eager = 0;
    for (const SignatureInfo& one : layer.info.signatures) {
      graphs += one.graphs;
      replays += one.replays;
      eager += one.eager_calls;
    }
    const std::string state = state_of(layer.info);
    captured += state == to_string(GraphedState::captured) ? 1 : 0;
    table.row({layer.name, state, count(layer.info.signatures.size()), count(graphs), count(replays), count(eager)});
  }
  report.fact("layers_found", "layers", count(layers.size())).fact("captured", "captured", count(captured));
  report.list("reasons", "Why calls stay eager, or were captured again", reasons_of(layers));
  report.table(std::move(table));
  return report;
}

GraphedLayers::GraphedLayers(std::vector<Layer> layers, const GraphedOptions& options) {
  if (layers.empty()) {
    throw UsageError({.what = "no layer was given", .where = "graph_layers", .fix = "pass the layers of the model"});
  }
  GraphedOptions of_each = options;
  if (of_each.family == nullptr) of_each.family = std::make_shared<const GraphPoolFamily>();
  for (Layer& layer : layers) {
    const bool is_known =
        std::any_of(layers_.begin(), layers_.end(), [&](const Named& other) { return other.name == layer.name; });
    if (is_known) {
      throw UsageError({.what = fmt::format("two layers have the name '{}'", layer.name),
                        .where = "graph_layers",
                        .fix = "give each a name of its own, which reports tell it by"});
    }
    layers_.push_back({.name = std::move(layer.name), .graphed = graphed(std::move(layer.callable), of_each)});
  }
}

Graphed& GraphedLayers::at(std::string_view name) {
  const auto found =
      std::find_if(layers_.begin(), layers_.end(), [&](const Named& layer) { return layer.name == name; });
  if (found != layers_.end()) return found->graphed;
  throw UsageError({.what = fmt::format("no graphed layer has the name '{}'", name),
                    .where = "GraphedLayers::at",
                    .fix = "info() has the names of all"});
}

bool GraphedLayers::backward_weights() {
  bool any = false;
  for (auto layer = layers_.rbegin(); layer != layers_.rend(); ++layer) any |= layer->graphed.backward_weights();
  return any;
}

void GraphedLayers::reset_all() {
  for (Named& layer : layers_) layer.graphed.reset();
}

LayersInfo GraphedLayers::info() const {
  LayersInfo all;
  for (const Named& layer : layers_) all.layers.push_back({.name = layer.name, .info = layer.graphed.info()});
  return all;
}

GraphedLayers graph_layers(std::vector<GraphedLayers::Layer> layers, const GraphedOptions& options) {
  return {std::move(layers), options};
}

}  // namespace pianola

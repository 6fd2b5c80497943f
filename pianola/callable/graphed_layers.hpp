#pragma once
#include <pianola/callable/callable.hpp>
#include <pianola/callable/graphed.hpp>
#include <pianola/callable/graphed_info.hpp>
#include <pianola/callable/graphed_options.hpp>
#include <pianola/core/export.hpp>
#include <pianola/core/report.hpp>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace pianola {

/// What the graphed layers of a model do and keep.
struct LayersInfo {
  struct Layer {
    std::string name;  ///< "layers.3".
    GraphedInfo info;
  };
  std::vector<Layer> layers;

  [[nodiscard]] PIANOLA_API Report report() const;
};

/// The layers of a model, each `graphed` by itself. Made by graph_layers().
///
/// Threads:  As Graphed, for each layer.
class PIANOLA_API GraphedLayers {
 public:
  struct Layer {
    std::string name;  ///< For reports.
    Callable callable;
  };

  GraphedLayers(std::vector<Layer> layers, const GraphedOptions& options);

  [[nodiscard]] std::size_t size() const noexcept { return layers_.size(); }
  [[nodiscard]] Graphed& operator[](std::size_t layer) { return layers_.at(layer).graphed; }
  /// @throws UsageError  No layer has this name.
  [[nodiscard]] Graphed& at(std::string_view name);

  /// With GraphedOptions::delay_weight_gradients: Graphed::backward_weights() of each layer, from the last to the first.
  /// Once for each backward pass through all. @return  False: none had left anything.
  bool backward_weights();

  /// Drops the graphs of all layers; their next calls warm up again. Outputs, gradients and backward passes of calls in
  /// flight live on.
  void reset_all();
  [[nodiscard]] LayersInfo info() const;

 private:
  struct Named {
    std::string name;
    Graphed graphed;
  };
  std::vector<Named> layers_;
};

/// Graphs the layers of a model one by one; the loop around them stays as it is:
///
///     auto layers = pianola::graph_layers({{"block 1", block1}, {"block 2", block2}});
///     for (std::size_t i = 0; i < layers.size(); ++i) x = layers[i](x);
///
/// Each layer warms up, is captured and falls back by itself: see Graphed.
///
/// @throws UsageError  There is no layer, two have one name, or an option is out of range.
[[nodiscard]] PIANOLA_API GraphedLayers graph_layers(std::vector<GraphedLayers::Layer> layers,
                                                     const GraphedOptions& options = {});

}  // namespace pianola

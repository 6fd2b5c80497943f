#pragma once
#include <pianola/config/cuda_graph_config.hpp>

#include <optional>
#include <string>
#include <string_view>

/// What the rules ask about a configuration.
namespace pianola::conditions {

using Config = CudaGraphConfig;

[[nodiscard]] bool has(const Config& config, CudaGraphModule module);

/// Anything is captured.
[[nodiscard]] bool captures(const Config& config);
[[nodiscard]] bool full_iteration(const Config& config);
/// Graphs of layers or of parts of them.
[[nodiscard]] bool per_layer(const Config& config);
/// Per-layer graphs of whole layers.
[[nodiscard]] bool whole_layers(const Config& config);
/// Per-layer graphs that inference alone uses.
[[nodiscard]] bool for_inference_alone(const Config& config);
/// Graphs that training uses.
[[nodiscard]] bool captures_training(const Config& config);
/// What inference captures, with the default of the implementation where nothing is said.
[[nodiscard]] InferenceGraphScope inference_scope(const Config& config);

/// There are experts.
[[nodiscard]] bool has_experts(const Config& config);
/// Every layer has experts.
[[nodiscard]] bool all_layers_have_experts(const Config& config);
/// The number of tokens that an expert computes is always the same.
[[nodiscard]] bool drops_and_pads(const Config& config);

/// It is selectively computed again: the module is listed, or is the one that is taken where none is.
[[nodiscard]] bool recomputes(const Config& config, std::string_view module);
/// A part of a layer is captured, by itself or as a part of something larger, and its recomputation with it. Where
/// Pianola captures forward and backward as one graph both draw from one generator, and nothing has to be rewound.
[[nodiscard]] bool rewinds_in_graph(const Config& config, CudaGraphModule module);
/// The probability that is set, or the default of the target.
[[nodiscard]] double dropout(const Config& config, const std::optional<double>& probability);

/// Modules whose inputs are offloaded are captured.
[[nodiscard]] bool offloads_in_graph(const Config& config);
/// All modules that are offloaded are among those that `local` graphs can leave outside; there is one at least.
[[nodiscard]] bool offloads_experts_alone(const Config& config);

/// Weight gradients that are delayed are captured.
[[nodiscard]] bool delays_wgrad_in_graph(const Config& config);
[[nodiscard]] bool packs(const Config& config);
[[nodiscard]] bool is_fsdp(const Config& config, int version);

/// The version is known and lower. Reads "2.9.0a0" as 2.9.0.
[[nodiscard]] bool older(const std::optional<std::string>& version, std::string_view needed);
/// Segments of the allocator grow, and NCCL may register what lies in them.
[[nodiscard]] bool registers_growing_segments(const Config& config);

}  // namespace pianola::conditions

#include <pianola/config/conditions.hpp>

#include <algorithm>
#include <array>
#include <charconv>

namespace pianola::conditions {
namespace {

template <class List, class Item>
bool contains(const List& list, const Item& item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

// Numbers in front of what is no number; missing ones are 0. Nothing: it does not begin with a number.
std::optional<std::array<int, 3>> parsed(std::string_view version) {
  std::array<int, 3> numbers = {};
  const char* at = version.data();
  const char* const end = at + version.size();
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const auto [rest, failure] = std::from_chars(at, end, numbers[i]);
    if (failure != std::errc{}) return i == 0 ? std::nullopt : std::optional(numbers);
    if (rest == end || *rest != '.') break;
    at = rest + 1;
  }
  return numbers;
}

}  // namespace

bool has(const Config& config, CudaGraphModule module) { return contains(config.cuda_graph_modules, module); }

bool captures(const Config& config) { return config.cuda_graph_impl != CudaGraphImpl::none; }

bool full_iteration(const Config& config) { return config.cuda_graph_impl == CudaGraphImpl::full_iteration; }

bool per_layer(const Config& config) { return captures(config) && !full_iteration(config); }

bool for_inference_alone(const Config& config) {
  return config.cuda_graph_impl == CudaGraphImpl::local && config.cuda_graph_modules.empty() &&
         config.inference_cuda_graph_scope.value_or(InferenceGraphScope::none) != InferenceGraphScope::none;
}

bool captures_training(const Config& config) { return captures(config) && !for_inference_alone(config); }

bool whole_layers(const Config& config) { return per_layer(config) && config.cuda_graph_modules.empty(); }

InferenceGraphScope inference_scope(const Config& config) {
  const bool is_local = config.cuda_graph_impl == CudaGraphImpl::local;
  return config.inference_cuda_graph_scope.value_or(is_local ? InferenceGraphScope::layer : InferenceGraphScope::none);
}

bool has_experts(const Config& config) { return config.num_moe_experts.value_or(0) > 1; }

bool all_layers_have_experts(const Config& config) {
  if (!has_experts(config)) return false;
  const std::vector<int>& frequency = config.moe_layer_freq;
  return frequency.size() == 1 ? frequency[0] == 1 : !frequency.empty() && !contains(frequency, 0);
}

bool drops_and_pads(const Config& config) {
  return config.moe_expert_capacity_factor && config.moe_pad_expert_input_to_capacity;
}

bool recomputes(const Config& config, std::string_view module) {
  if (config.recompute_granularity != RecomputeGranularity::selective) return false;
  return config.recompute_modules.empty() ? module == "core_attn" : contains(config.recompute_modules, module);
}

bool rewinds_in_graph(const Config& config, CudaGraphModule module) {
  if (full_iteration(config)) return config.target != ConfigTarget::pianola;
  return whole_layers(config) || (per_layer(config) && has(config, module));
}

double dropout(const Config& config, const std::optional<double>& probability) {
  return probability.value_or(config.target == ConfigTarget::pianola ? 0.0 : 0.1);
}

bool offloads_in_graph(const Config& config) {
  if (!config.fine_grained_activation_offloading || !per_layer(config)) return false;
  const auto offloads = [&](std::string_view module) { return contains(config.offload_modules, module); };
  const bool in_attention = offloads("core_attn") || offloads("attn_proj") || offloads("qkv_linear");
  return (has(config, CudaGraphModule::attn) && in_attention) ||
         (has(config, CudaGraphModule::mlp) && !all_layers_have_experts(config) && offloads("mlp_norm"));
}

bool offloads_experts_alone(const Config& config) {
  constexpr auto kOutside = std::to_array<std::string_view>({"expert_fc1", "moe_act", "fused_group_mlp"});
  return !config.offload_modules.empty() && std::all_of(config.offload_modules.begin(), config.offload_modules.end(),
                                                        [&](const auto& module) { return contains(kOutside, module); });
}

bool delays_wgrad_in_graph(const Config& config) {
  const bool checked = config.target != ConfigTarget::megatron || config.overlap_grad_reduce;
  const bool shared_experts = config.moe_shared_expert_intermediate_size && !config.moe_shared_expert_overlap;
  return config.delay_wgrad_compute && checked && per_layer(config) &&
         (has(config, CudaGraphModule::attn) || (has(config, CudaGraphModule::moe_router) && shared_experts));
}

bool packs(const Config& config) { return config.enable_offline_packing || config.packing_buffer_size; }

bool is_fsdp(const Config& config, int version) {
  return config.use_megatron_fsdp && config.megatron_fsdp_version == version;
}

bool older(const std::optional<std::string>& version, std::string_view needed) {
  const auto known = version ? parsed(*version) : std::nullopt;
  return known && *known < *parsed(needed);
}

bool registers_growing_segments(const Config& config) {
  const std::string options = config.pytorch_cuda_alloc_conf.value_or("");
  return options.find("expandable_segments:True") != std::string::npos && config.nccl_graph_register != 0;
}

}  // namespace pianola::conditions

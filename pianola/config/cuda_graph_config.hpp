#pragma once
#include <optional>
#include <string>
#include <vector>

namespace pianola {

/// Whose graphs a configuration is for: some rules are those of one framework's implementation alone.
enum class ConfigTarget {
  pianola,   ///< Pianola's own: FullIteration, graphed callables.
  megatron,  ///< Megatron-LM.
  bridge,    ///< Megatron-Bridge, which drives Megatron-LM and adds rules of its own.
};

/// What makes the graphs. Megatron's names; those of Pianola are other names of the same values, in files too.
enum class CudaGraphImpl {
  none,                ///< Nothing is captured.
  local,               ///< Per-layer graphs that are captured while training goes on.
  transformer_engine,  ///< Per-layer graphed callables that are made ahead, by make_graphed_callables.
  full_iteration,      ///< One graph of all microbatches' forward and backward passes.
  per_layer = local,
  callables = transformer_engine,
  iteration = full_iteration,
};

/// A part of a layer that per-layer graphs capture.
enum class CudaGraphModule { attn, mlp, moe, moe_router, moe_preprocess, mamba };

/// What inference captures.
enum class InferenceGraphScope { none, layer, block };

/// What is computed again in the backward pass instead of being kept.
enum class RecomputeGranularity { full, selective };

/// How tokens travel to their experts.
enum class TokenDispatcher { allgather, alltoall, flex };

/// Which kernels a transformer layer is made of.
enum class TransformerImpl { local, transformer_engine, inference_optimized };

/// Everything of a training configuration that bears on CUDA graphs, under the names that Megatron-LM and
/// Megatron-Bridge give it. config_fields() says what each one means and where it stands in a file.
///
/// An empty optional is what nobody has said: check_config() fills in some of those, and leaves alone the rules that
/// need to know more.
struct CudaGraphConfig {
  ConfigTarget target = ConfigTarget::pianola;

  CudaGraphImpl cuda_graph_impl = CudaGraphImpl::none;
  std::vector<CudaGraphModule> cuda_graph_modules = {};  ///< Empty: whole layers.
  int cuda_graph_warmup_steps = 3;
  bool cuda_graph_use_single_mempool = true;
  bool cuda_graph_retain_backward_graph = false;

  std::optional<bool> use_te_rng_tracker = {};
  std::optional<bool> te_rng_tracker = {};

  std::optional<bool> check_for_nan_in_loss = {};
  std::optional<bool> check_for_nan_in_grad = {};

  bool optimizer_cuda_graph = false;
  std::optional<bool> capturable = {};
  bool log_num_zeros_in_grad = false;

  int pipeline_model_parallel_size = 1;
  int gtp_weight_remat_size = 1;
  bool hybrid_context_parallel = false;
  TransformerImpl transformer_impl = TransformerImpl::transformer_engine;
  bool use_transformer_engine_full_layer_spec = false;
  std::optional<std::string> fp8 = {};
  std::optional<std::string> fp8_recipe = {};
  int fp8_margin = 0;
  int fp8_amax_history_len = 1;
  std::string fp8_amax_compute_algo = "most_recent";
  bool fp8_wgrad = true;
  bool fp8_param = false;
  bool fp8_dot_product_attention = false;
  bool fp8_multi_head_attention = false;
  bool first_last_layers_bf16 = false;
  int num_layers_at_start_in_bf16 = 1;
  int num_layers_at_end_in_bf16 = 1;
  std::optional<std::string> fp4 = {};
  bool cross_entropy_loss_fusion = false;
  std::string cross_entropy_fusion_impl = "native";

  std::optional<double> attention_dropout = {};
  std::optional<double> hidden_dropout = {};
  std::optional<RecomputeGranularity> recompute_granularity = {};
  std::vector<std::string> recompute_modules = {};  ///< Empty: "core_attn".
  bool cpu_offloading = false;
  bool fine_grained_activation_offloading = false;
  std::vector<std::string> offload_modules = {};
  std::optional<int> fine_grained_offloading_max_inflight_offloads = {};

  std::optional<int> num_moe_experts = {};
  std::vector<int> moe_layer_freq = {1};  ///< One number N: each Nth layer; else 1 or 0 for each layer.
  std::optional<double> moe_expert_capacity_factor = {};
  bool moe_pad_expert_input_to_capacity = false;
  TokenDispatcher moe_token_dispatcher_type = TokenDispatcher::allgather;
  std::optional<std::string> moe_flex_dispatcher_backend = {};
  bool moe_hybridep_pad_uneven_dispatch_inputs = false;
  bool moe_router_padding_for_fp8 = false;
  std::optional<double> moe_input_jitter_eps = {};
  std::optional<int> moe_shared_expert_intermediate_size = {};
  bool moe_shared_expert_overlap = false;
  bool overlap_moe_expert_parallel_comm = false;

  bool delay_wgrad_compute = false;
  bool gradient_accumulation_fusion = false;
  bool add_bias_linear = true;
  bool add_qkv_bias = false;
  bool overlap_grad_reduce = false;
  bool use_megatron_fsdp = false;
  int megatron_fsdp_version = 1;
  bool megatron_fsdp_cuda_graph_mode = false;
  std::optional<bool> fsdp_all_gather_in_start_param_sync = {};

  bool variable_seq_lengths = false;
  std::vector<int> rampup_batch_size = {};
  bool enable_offline_packing = false;
  bool pad_to_max_length = false;
  bool pad_cu_seqlens = false;
  std::optional<int> packing_buffer_size = {};
  CudaGraphImpl vision_cuda_graph_impl = CudaGraphImpl::none;
  std::optional<int> max_vision_cuda_graph_seq_length = {};
  std::optional<int> vision_seq_length = {};

  std::optional<InferenceGraphScope> inference_cuda_graph_scope = {};
  int inference_dynamic_batching_num_cuda_graphs = 16;
  int inference_batch_times_seqlen_threshold = -1;
  bool rl_training_cuda_graphs = false;
  bool rl_persist_cuda_graphs = false;

  std::optional<std::string> te_version = {};
  std::optional<std::string> torch_version = {};
  std::optional<double> compute_capability = {};
  std::optional<std::string> pytorch_cuda_alloc_conf = {};
  std::optional<int> nccl_graph_register = {};
  std::optional<int> cuda_graphs_use_node_priority = {};

  friend bool operator==(const CudaGraphConfig&, const CudaGraphConfig&) = default;
};

}  // namespace pianola

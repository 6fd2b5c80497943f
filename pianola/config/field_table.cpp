#include <pianola/config/field_table.hpp>

#include <array>

namespace pianola {
namespace {

using C = CudaGraphConfig;

constexpr std::string_view kPacking = "dataset.offline_packing_specs";

constexpr std::array kFields = std::to_array<ConfigField>({
    {"", "target", "whose graphs the configuration is for", &C::target},

    {"model", "cuda_graph_impl",
     "what makes the graphs; per_layer, callables and iteration are other names of local, transformer_engine and "
     "full_iteration",
     &C::cuda_graph_impl},
    {"model", "cuda_graph_modules", "parts of a layer that per-layer graphs capture; none: whole layers",
     &C::cuda_graph_modules},
    {"model", "cuda_graph_warmup_steps", "eager steps before the capture", &C::cuda_graph_warmup_steps},
    {"model", "cuda_graph_use_single_mempool", "training, evaluation and optimizer graphs share a memory pool",
     &C::cuda_graph_use_single_mempool},
    {"model", "cuda_graph_retain_backward_graph", "backward passes of per-layer graphs are captured with retain_graph",
     &C::cuda_graph_retain_backward_graph},

    {"model", "use_te_rng_tracker", "the layers' random streams are kept in states that a graph can register",
     &C::use_te_rng_tracker},
    {"rng", "te_rng_tracker", "the same, of the tracker that the training sets up", &C::te_rng_tracker},

    {"rerun_state_machine", "check_for_nan_in_loss", "each step looks at the loss", &C::check_for_nan_in_loss},
    {"ddp", "check_for_nan_in_grad", "each step looks at the gradients", &C::check_for_nan_in_grad},

    {"optimizer", "optimizer_cuda_graph", "the optimizer's step is captured", &C::optimizer_cuda_graph},
    {"optimizer", "capturable", "step counts and learning rates of the optimizer are on the device", &C::capturable},
    {"optimizer", "log_num_zeros_in_grad", "zeros in the gradients are counted in each step",
     &C::log_num_zeros_in_grad},

    {"model", "pipeline_model_parallel_size", "stages of the pipeline", &C::pipeline_model_parallel_size},
    {"model", "gtp_weight_remat_size", "ranks that each weight is gathered from (GTP)", &C::gtp_weight_remat_size},
    {"model", "hybrid_context_parallel", "the number of ranks that share a sequence follows its length",
     &C::hybrid_context_parallel},
    {"model", "transformer_impl", "which kernels layers are made of", &C::transformer_impl},
    {"model", "use_transformer_engine_full_layer_spec", "whole layers of Transformer Engine under its autocast",
     &C::use_transformer_engine_full_layer_spec},
    {"model", "fp8", "format of FP8 training", &C::fp8},
    {"model", "fp8_recipe", "how FP8 scales are found: delayed, tensorwise, blockwise, mxfp8", &C::fp8_recipe},
    {"model", "fp8_margin", "delayed scales are 2^margin smaller", &C::fp8_margin},
    {"model", "fp8_amax_history_len", "steps whose largest magnitudes delayed scales come from",
     &C::fp8_amax_history_len},
    {"model", "fp8_amax_compute_algo", "which of them: max or most_recent", &C::fp8_amax_compute_algo},
    {"model", "fp8_wgrad", "weight gradients are FP8 products, too", &C::fp8_wgrad},
    {"model", "fp8_param", "weights are kept in FP8", &C::fp8_param},
    {"model", "fp8_dot_product_attention", "attention multiplies in FP8", &C::fp8_dot_product_attention},
    {"model", "fp8_multi_head_attention", "attention takes and gives FP8", &C::fp8_multi_head_attention},
    {"model", "first_last_layers_bf16", "the first and last layers stay out of FP8", &C::first_last_layers_bf16},
    {"model", "num_layers_at_start_in_bf16", "how many at the start", &C::num_layers_at_start_in_bf16},
    {"model", "num_layers_at_end_in_bf16", "how many at the end", &C::num_layers_at_end_in_bf16},
    {"model", "fp4", "format of FP4 training", &C::fp4},
    {"model", "cross_entropy_loss_fusion", "the loss is one kernel", &C::cross_entropy_loss_fusion},
    {"model", "cross_entropy_fusion_impl", "whose kernel the loss is: native or te", &C::cross_entropy_fusion_impl},

    {"model", "attention_dropout", "probability; unset: 0.1 in Megatron-LM, 0 here", &C::attention_dropout},
    {"model", "hidden_dropout", "probability; unset: 0.1 in Megatron-LM, 0 here", &C::hidden_dropout},
    {"model", "recompute_granularity", "what the backward pass computes again", &C::recompute_granularity},
    {"model", "recompute_modules", "what selective recomputation computes again; none: core_attn",
     &C::recompute_modules},
    {"model", "cpu_offloading", "activations of whole layers wait in the memory of the host", &C::cpu_offloading},
    {"model", "fine_grained_activation_offloading", "activations of offload_modules wait in the memory of the host",
     &C::fine_grained_activation_offloading},
    {"model", "offload_modules", "modules whose inputs are offloaded", &C::offload_modules},
    {"model", "fine_grained_offloading_max_inflight_offloads", "offloads that may be on their way at once",
     &C::fine_grained_offloading_max_inflight_offloads},

    {"model", "num_moe_experts", "experts; unset or 1: there are none", &C::num_moe_experts},
    {"model", "moe_layer_freq", "one number N: each Nth layer has experts; a list: 1 or 0 for each layer",
     &C::moe_layer_freq},
    {"model", "moe_expert_capacity_factor", "tokens that an expert takes, relative to an even share; unset: all",
     &C::moe_expert_capacity_factor},
    {"model", "moe_pad_expert_input_to_capacity", "each expert's input is padded to its capacity",
     &C::moe_pad_expert_input_to_capacity},
    {"model", "moe_token_dispatcher_type", "how tokens travel to their experts", &C::moe_token_dispatcher_type},
    {"model", "moe_flex_dispatcher_backend", "what the flex dispatcher runs on: deepep, hybridep, ncclep",
     &C::moe_flex_dispatcher_backend},
    {"model", "moe_hybridep_pad_uneven_dispatch_inputs", "HybridEP pads what ranks send to the same length",
     &C::moe_hybridep_pad_uneven_dispatch_inputs},
    {"model", "moe_router_padding_for_fp8", "the router pads each expert's tokens for FP8",
     &C::moe_router_padding_for_fp8},
    {"model", "moe_input_jitter_eps", "noise on the experts' inputs", &C::moe_input_jitter_eps},
    {"model", "moe_shared_expert_intermediate_size", "size of the shared experts; unset: there are none",
     &C::moe_shared_expert_intermediate_size},
    {"model", "moe_shared_expert_overlap", "shared experts run while tokens travel", &C::moe_shared_expert_overlap},
    {"model", "overlap_moe_expert_parallel_comm", "tokens of one microbatch travel while another one is computed",
     &C::overlap_moe_expert_parallel_comm},

    {"model", "delay_wgrad_compute", "weight gradients are computed after the gradients of activations",
     &C::delay_wgrad_compute},
    {"model", "gradient_accumulation_fusion", "weight gradients are added to main_grad by the product itself",
     &C::gradient_accumulation_fusion},
    {"model", "add_bias_linear", "linear layers have a bias", &C::add_bias_linear},
    {"model", "add_qkv_bias", "the projections of queries, keys and values have one", &C::add_qkv_bias},
    {"ddp", "overlap_grad_reduce", "gradients are reduced while the backward pass goes on", &C::overlap_grad_reduce},
    {"ddp", "use_megatron_fsdp", "parameters are sharded by Megatron-FSDP", &C::use_megatron_fsdp},
    {"ddp", "megatron_fsdp_version", "1 or 2", &C::megatron_fsdp_version},
    {"ddp", "megatron_fsdp_cuda_graph_mode", "Megatron-FSDP keeps off what graphs cannot do",
     &C::megatron_fsdp_cuda_graph_mode},
    {"ddp", "fsdp_all_gather_in_start_param_sync", "Megatron-FSDP gathers parameters in the optimizer's step",
     &C::fsdp_all_gather_in_start_param_sync},

    {"model", "variable_seq_lengths", "sequence lengths change between microbatches", &C::variable_seq_lengths},
    {"train", "rampup_batch_size", "start, increment and samples of a growing batch; none: it does not grow",
     &C::rampup_batch_size},
    {"dataset", "enable_offline_packing", "sequences were packed before the training", &C::enable_offline_packing},
    {"dataset", "pad_to_max_length", "each sequence is padded to the same length", &C::pad_to_max_length},
    {kPacking, "pad_cu_seqlens", "the list of boundaries in a packed sequence is padded to the same length",
     &C::pad_cu_seqlens},
    {"dataset", "packing_buffer_size", "samples that Energon packs from while it loads; unset: it does not pack",
     &C::packing_buffer_size},
    {"model", "vision_cuda_graph_impl", "what makes the graphs of the vision encoder", &C::vision_cuda_graph_impl},
    {"model", "max_vision_cuda_graph_seq_length", "longest sequence that the vision encoder's graphs take",
     &C::max_vision_cuda_graph_seq_length},
    {"dataset", "vision_seq_length", "longest sequence that the data gives to the vision encoder",
     &C::vision_seq_length},

    {"model", "inference_cuda_graph_scope", "what inference captures; unset: layer with local, else none",
     &C::inference_cuda_graph_scope},
    {"inference", "inference_dynamic_batching_num_cuda_graphs", "graphs for batches of different sizes; -1: as needed",
     &C::inference_dynamic_batching_num_cuda_graphs},
    {"inference", "inference_batch_times_seqlen_threshold", "inference is pipelined above this size; -1: never",
     &C::inference_batch_times_seqlen_threshold},
    {"rl", "rl_training_cuda_graphs", "the training phase of reinforcement learning is captured",
     &C::rl_training_cuda_graphs},
    {"rl", "rl_persist_cuda_graphs", "graphs of inference stay alive while reinforcement learning trains",
     &C::rl_persist_cuda_graphs},

    {"env", "te_version", "version of Transformer Engine: \"2.12.0\"", &C::te_version},
    {"env", "torch_version", "version of PyTorch: \"2.11.0\"", &C::torch_version},
    {"env", "compute_capability", "of the GPUs: 9.0, 10.0", &C::compute_capability},
    {"env", "pytorch_cuda_alloc_conf", "options of PyTorch's allocator", &C::pytorch_cuda_alloc_conf},
    {"env", "nccl_graph_register", "whether NCCL registers buffers that a graph uses: 0 or 1", &C::nccl_graph_register},
    {"env", "cuda_graphs_use_node_priority", "whether graphs keep the priorities of streams: 0 or 1",
     &C::cuda_graphs_use_node_priority},
});

}  // namespace

std::span<const ConfigField> config_field_table() noexcept { return kFields; }

}  // namespace pianola

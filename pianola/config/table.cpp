#include <pianola/config/table.hpp>

#include <pianola/config/conditions.hpp>

#include <array>

namespace pianola {
namespace {

using namespace conditions;
using enum ConfigOutcome;
using enum CudaGraphModule;

constexpr ConfigTargets kAll = {ConfigTarget::pianola, ConfigTarget::megatron, ConfigTarget::bridge};
constexpr ConfigTargets kFrameworks = {ConfigTarget::megatron, ConfigTarget::bridge};
constexpr ConfigTargets kMegatron = {ConfigTarget::megatron};
constexpr ConfigTargets kBridge = {ConfigTarget::bridge};
constexpr ConfigTargets kPianola = {ConfigTarget::pianola};

constexpr std::string_view kNoHostRead =
    "the check reads a value on the host, which a capture forbids; Pianola keeps it in a full-iteration graph, since "
    "its "
    "checks raise a flag on the device that the host reads one step later";
constexpr std::string_view kNoRewind =
    "the recomputation has to draw the random numbers of the forward pass again, and a generator that is captured "
    "cannot be set back; only forward and backward in one graph of Pianola's draw them by their positions";
constexpr std::string_view kFixedShapes = "a graph has the shapes of its capture";

constexpr bool is_false(const std::optional<bool>& value) { return value == false; }

// Hundreds are groups: 1 implementation and modules, 2 random numbers, 3 checks and optimizer, 4 experts,
// 5 recomputation, dropout and offloading, 6 shapes and packing, 7 communication and sharding, 8 versions and
// environment, 9 inference and reinforcement learning.
constexpr std::array kRules = std::to_array<ConfigRule>({
    {"CF101", fixed, "modules are named, and nothing is captured",
     "cuda_graph_modules = {cuda_graph_modules} has no effect with cuda_graph_impl = {cuda_graph_impl}",
     "cuda_graph_modules is emptied", "modules are parts of per-layer graphs, and there are none", kAll,
     [](const Config& c) { return !captures(c) && !c.cuda_graph_modules.empty(); },
     [](Config& c) { c.cuda_graph_modules.clear(); }},
    {"CF102", error, "modules are named, and the whole iteration is captured",
     "cuda_graph_modules = {cuda_graph_modules} cannot be combined with cuda_graph_impl = {cuda_graph_impl}",
     "empty cuda_graph_modules, or choose per-layer graphs", "one graph of the iteration holds every module", kAll,
     [](const Config& c) { return full_iteration(c) && !c.cuda_graph_modules.empty(); }},
    {"CF103", error, "local graphs of layers are to train under Megatron-Bridge",
     "Megatron-Bridge has cuda_graph_impl = {cuda_graph_impl} for full iterations and for inference only, and here it "
     "is neither (cuda_graph_modules = {cuda_graph_modules})",
     "set cuda_graph_impl to transformer_engine for layers or modules, or to full_iteration",
     "Megatron-Bridge does not make the managers that local graphs of layers need", kBridge,
     [](const Config& c) { return c.cuda_graph_impl == CudaGraphImpl::local && !for_inference_alone(c); }},
    {"CF104", error, "the number of warm-up steps is negative",
     "cuda_graph_warmup_steps must be 0 or more, got {cuda_graph_warmup_steps}", "set it to 3",
     "it is how many eager steps come before the capture", kAll,
     [](const Config& c) { return c.cuda_graph_warmup_steps < 0; }},
    {"CF105", warning, "there is no warm-up step", "nothing runs before the capture: cuda_graph_warmup_steps = 0",
     "set it to 3, or to 11 under DistributedDataParallel",
     "libraries choose kernels and make workspaces in their first calls, and buffers for FP8 scales are made by eager "
     "steps only",
     kAll, [](const Config& c) { return captures_training(c) && c.cuda_graph_warmup_steps == 0; }},
    {"CF106", fixed, "weights are gathered from other ranks, and there are fewer than two warm-up steps",
     "gtp_weight_remat_size = {gtp_weight_remat_size} needs two warm-up steps, and there are {cuda_graph_warmup_steps}",
     "cuda_graph_warmup_steps is raised to 2",
     "the first step finds the order in which weights are fetched ahead, the second one fetches by it", kFrameworks,
     [](const Config& c) {
       return captures(c) && c.gtp_weight_remat_size > 1 && c.cuda_graph_warmup_steps >= 0 &&
              c.cuda_graph_warmup_steps < 2;
     },
     [](Config& c) { c.cuda_graph_warmup_steps = 2; }},
    {"CF107", warning, "memory pools are kept apart where there is one only",
     "cuda_graph_use_single_mempool = {cuda_graph_use_single_mempool} has no effect with cuda_graph_impl = "
     "{cuda_graph_impl} and without an optimizer graph",
     "leave it out", "it is about graphs of full iterations and of the optimizer; graphs of layers always share a pool",
     kAll,
     [](const Config& c) {
       return captures(c) && !full_iteration(c) && !c.optimizer_cuda_graph && !c.cuda_graph_use_single_mempool;
     }},
    {"CF108", warning, "the backward graph is to be retained, and there is none by itself",
     "cuda_graph_retain_backward_graph has no effect with cuda_graph_impl = {cuda_graph_impl}", "leave it out",
     "it is about the backward graphs of layers; a full iteration says retain_graph in its own backward call", kAll,
     [](const Config& c) { return full_iteration(c) && c.cuda_graph_retain_backward_graph; }},
    {"CF109", error, "full Transformer Engine layers with local graphs, and with offloading or recomputation",
     "local graphs of full Transformer Engine layers go neither with cpu_offloading = {cpu_offloading} nor with "
     "recompute_granularity = {recompute_granularity}",
     "switch both off, or leave use_transformer_engine_full_layer_spec out",
     "the layer's graph manager supports neither", kBridge,
     [](const Config& c) {
       return c.use_transformer_engine_full_layer_spec && c.cuda_graph_impl == CudaGraphImpl::local &&
              (c.cpu_offloading || c.recompute_granularity);
     }},
    {"CF110", warning, "each stage of a pipeline holds graphs",
     "pipeline_model_parallel_size = {pipeline_model_parallel_size}: each stage holds graphs for every microbatch in "
     "flight",
     "leave memory free, or capture fewer modules",
     "a graph keeps all its intermediate results for as long as it lives; measurements of pipelines say more than 10 "
     "GB", kFrameworks,
     [](const Config& c) { return captures_training(c) && c.pipeline_model_parallel_size > 1; }},

    {"CF201", fixed, "one of the two random number trackers is set",
     "use_te_rng_tracker = {use_te_rng_tracker} and te_rng_tracker = {te_rng_tracker} are one choice",
     "both are set to true", "the model and the training's set-up have to use the same random streams", kAll,
     [](const Config& c) { return (c.use_te_rng_tracker == true) != (c.te_rng_tracker == true); },
     [](Config& c) { c.use_te_rng_tracker = c.te_rng_tracker = true; }},
    {"CF202", fixed, "something is captured, and nobody chose a random number tracker",
     "cuda_graph_impl = {cuda_graph_impl} needs random number states that a graph can register",
     "use_te_rng_tracker and te_rng_tracker are set to true",
     "a tracker that copies states to and fro waits for the device and freezes the numbers that are drawn", kAll,
     [](const Config& c) { return captures(c) && !c.use_te_rng_tracker && !c.te_rng_tracker; },
     [](Config& c) { c.use_te_rng_tracker = c.te_rng_tracker = true; }},
    {"CF203", error, "something is captured, and the random number tracker is switched off",
     "cuda_graph_impl = {cuda_graph_impl} needs random number states that a graph can register, and "
     "use_te_rng_tracker = {use_te_rng_tracker}, te_rng_tracker = {te_rng_tracker}",
     "set both to true",
     "a tracker that copies states to and fro waits for the device and freezes the numbers that are drawn", kAll,
     [](const Config& c) {
       return captures(c) && (is_false(c.use_te_rng_tracker) || is_false(c.te_rng_tracker)) &&
              c.use_te_rng_tracker != true && c.te_rng_tracker != true;
     }},

    {"CF301", fixed, "the whole iteration is captured, and nobody said whether the loss is looked at",
     "the loss cannot be looked at inside cuda_graph_impl = {cuda_graph_impl}",
     "check_for_nan_in_loss is set to false", kNoHostRead, kFrameworks,
     [](const Config& c) { return full_iteration(c) && !c.check_for_nan_in_loss; },
     [](Config& c) { c.check_for_nan_in_loss = false; }},
    {"CF302", error, "the whole iteration is captured, and the loss is looked at",
     "check_for_nan_in_loss must be off with cuda_graph_impl = {cuda_graph_impl}",
     "set rerun_state_machine.check_for_nan_in_loss to false, or target to pianola", kNoHostRead, kFrameworks,
     [](const Config& c) { return full_iteration(c) && c.check_for_nan_in_loss == true; }},
    {"CF303", fixed, "the whole iteration is captured, and nobody said whether gradients are looked at",
     "gradients cannot be looked at inside cuda_graph_impl = {cuda_graph_impl}",
     "check_for_nan_in_grad is set to false", kNoHostRead, kFrameworks,
     [](const Config& c) { return full_iteration(c) && !c.check_for_nan_in_grad; },
     [](Config& c) { c.check_for_nan_in_grad = false; }},
    {"CF304", error, "the whole iteration is captured, and gradients are looked at",
     "check_for_nan_in_grad must be off with cuda_graph_impl = {cuda_graph_impl}",
     "set ddp.check_for_nan_in_grad to false, or target to pianola", kNoHostRead, kFrameworks,
     [](const Config& c) { return full_iteration(c) && c.check_for_nan_in_grad == true; }},
    {"CF305", fixed, "the optimizer is captured, and nobody said where its state is",
     "optimizer_cuda_graph needs an optimizer whose state is on the device", "capturable is set to true",
     "step counts and learning rates on the host would be frozen", kAll,
     [](const Config& c) { return c.optimizer_cuda_graph && !c.capturable; }, [](Config& c) { c.capturable = true; }},
    {"CF306", error, "the optimizer is captured, and its state is on the host",
     "optimizer_cuda_graph cannot be combined with capturable = {capturable}", "set optimizer.capturable to true",
     "step counts and learning rates on the host would be frozen", kAll,
     [](const Config& c) { return c.optimizer_cuda_graph && is_false(c.capturable); }},
    {"CF307", error, "the optimizer is captured, and zeros in gradients are counted",
     "optimizer_cuda_graph cannot be combined with log_num_zeros_in_grad",
     "set optimizer.log_num_zeros_in_grad to false", "the count is read on the host in the optimizer's step", kAll,
     [](const Config& c) { return c.optimizer_cuda_graph && c.log_num_zeros_in_grad; }},

    {"CF401", fixed, "local graphs with one of moe_router and moe_preprocess",
     "local graphs capture the router and the preprocessing together, and cuda_graph_modules = {cuda_graph_modules}",
     "the other one is added", "local graphs end where tokens are sent, so they hold both or none", kMegatron,
     [](const Config& c) {
       return c.cuda_graph_impl == CudaGraphImpl::local && has(c, moe_router) != has(c, moe_preprocess);
     },
     [](Config& c) { c.cuda_graph_modules.push_back(has(c, moe_router) ? moe_preprocess : moe_router); }},
    {"CF402", error, "both moe and moe_router are captured", "cuda_graph_modules has moe and moe_router",
     "name one of them", "the router is a part of moe", kAll,
     [](const Config& c) { return per_layer(c) && has(c, moe) && has(c, moe_router); }},
    {"CF403", error, "moe_preprocess is captured without moe_router",
     "cuda_graph_modules = {cuda_graph_modules} has moe_preprocess and lacks moe_router", "add moe_router",
     "the preprocessing works on what the router decided, in the same graph", kAll,
     [](const Config& c) { return per_layer(c) && has(c, moe_preprocess) && !has(c, moe_router); }},
    {"CF404", error, "modules of experts are captured, and there are no experts",
     "cuda_graph_modules = {cuda_graph_modules} needs experts, and num_moe_experts = {num_moe_experts}",
     "set num_moe_experts, or name attn and mlp", "the model has no such layer", kAll,
     [](const Config& c) { return per_layer(c) && !has_experts(c) && (has(c, moe) || has(c, moe_router)); }},
    {"CF405", error, "mlp is captured, and every layer has experts",
     "cuda_graph_modules has mlp, and moe_layer_freq = {moe_layer_freq} leaves no dense layer",
     "name moe_router and moe_preprocess instead of mlp", "mlp is the part of dense layers", kAll,
     [](const Config& c) { return per_layer(c) && has(c, mlp) && all_layers_have_experts(c); }},
    {"CF406", error, "moe is captured, and the number of tokens of an expert changes",
     "moe can be captured with a fixed capacity only: moe_expert_capacity_factor = {moe_expert_capacity_factor}, "
     "moe_pad_expert_input_to_capacity = {moe_pad_expert_input_to_capacity}",
     "set both, or name moe_router and moe_preprocess instead of moe", kFixedShapes, kAll,
     [](const Config& c) { return per_layer(c) && has_experts(c) && has(c, moe) && !drops_and_pads(c); }},
    {"CF407", error, "moe_preprocess is captured, and it copies counts to the host",
     "moe_preprocess cannot be captured with the alltoall dispatcher and moe_expert_capacity_factor = "
     "{moe_expert_capacity_factor}, moe_router_padding_for_fp8 = {moe_router_padding_for_fp8}",
     "leave moe_preprocess out, set moe_pad_expert_input_to_capacity, or use another dispatcher",
     "the dispatcher reads the number of tokens on the host", kAll,
     [](const Config& c) {
       return per_layer(c) && has_experts(c) && has(c, moe_preprocess) && !drops_and_pads(c) &&
              c.moe_token_dispatcher_type == TokenDispatcher::alltoall &&
              (c.moe_expert_capacity_factor || c.moe_router_padding_for_fp8);
     }},
    {"CF408", warning, "everything is captured, and the number of tokens of an expert changes",
     "a graph of everything holds the experts too, whose number of tokens changes without a fixed capacity",
     "set moe_expert_capacity_factor and moe_pad_expert_input_to_capacity, or capture moe_router and moe_preprocess",
     "it works only with a dispatcher and grouped products that never read a count on the host", kAll,
     [](const Config& c) {
       return (full_iteration(c) || (whole_layers(c) && !for_inference_alone(c))) && has_experts(c) &&
              !drops_and_pads(c);
     }},
    {"CF409", fixed, "HybridEP sends without padding",
     "ranks may send different numbers of tokens, which HybridEP cannot dispatch",
     "moe_hybridep_pad_uneven_dispatch_inputs is set to true",
     "HybridEP wants the same number from each rank; without graphs padding costs one read on the host", kBridge,
     [](const Config& c) {
       return !captures(c) && c.moe_token_dispatcher_type == TokenDispatcher::flex &&
              c.moe_flex_dispatcher_backend == "hybridep" && !c.moe_hybridep_pad_uneven_dispatch_inputs;
     },
     [](Config& c) { c.moe_hybridep_pad_uneven_dispatch_inputs = true; }},
    {"CF410", error, "something is captured, and HybridEP pads what it sends",
     "moe_hybridep_pad_uneven_dispatch_inputs cannot be combined with cuda_graph_impl = {cuda_graph_impl}",
     "set it to false and give each rank the same number of tokens",
     "finding the common length reads a number on the host", kFrameworks,
     [](const Config& c) {
       return captures(c) && c.moe_token_dispatcher_type == TokenDispatcher::flex &&
              c.moe_flex_dispatcher_backend == "hybridep" && c.moe_hybridep_pad_uneven_dispatch_inputs;
     }},

    {"CF501", error, "per-layer graphs with offloading to the host",
     "cpu_offloading cannot be combined with cuda_graph_impl = {cuda_graph_impl}",
     "switch cpu_offloading off, or capture the full iteration",
     "activations move between the host and the device in between the graphs, which keep the addresses of the capture",
     kAll, [](const Config& c) { return per_layer(c) && c.cpu_offloading; }},
    {"CF502", error, "per-layer graphs with full recomputation",
     "recompute_granularity = {recompute_granularity} cannot be combined with cuda_graph_impl = {cuda_graph_impl}",
     "capture the full iteration, or recompute selectively",
     "the forward pass that is recomputed would replay the forward graph while its first results are still needed",
     kAll,
     [](const Config& c) { return per_layer(c) && c.recompute_granularity == RecomputeGranularity::full; }},
    {"CF503", error, "moe is recomputed, and moe_router is captured inside it",
     "recomputing moe covers moe_router, which cuda_graph_impl = {cuda_graph_impl} captures",
     "take moe out of recompute_modules, or moe_router out of cuda_graph_modules",
     "what is recomputed has to lie inside the graph or outside of it, not around it", kAll,
     [](const Config& c) {
       return c.cuda_graph_impl == CudaGraphImpl::transformer_engine && has(c, moe_router) && recomputes(c, "moe");
     }},
    {"CF504", error, "attention with dropout is recomputed inside a graph",
     "attention_dropout = {attention_dropout} is not 0, and core_attn is recomputed inside a graph",
     "set attention_dropout to 0, or take core_attn out of recompute_modules", kNoRewind, kAll,
     [](const Config& c) {
       return rewinds_in_graph(c, attn) && recomputes(c, "core_attn") && dropout(c, c.attention_dropout) != 0.0;
     }},
    {"CF505", error, "mlp or moe with dropout is recomputed inside a graph",
     "hidden_dropout = {hidden_dropout} is not 0, and {recompute_modules} are recomputed inside a graph",
     "set hidden_dropout to 0, or take mlp and moe out of recompute_modules", kNoRewind, kAll,
     [](const Config& c) {
       const bool dense = rewinds_in_graph(c, mlp) && recomputes(c, "mlp");
       const bool experts = rewinds_in_graph(c, moe) && recomputes(c, "moe");
       return (dense || experts) && dropout(c, c.hidden_dropout) != 0.0;
     }},
    {"CF506", error, "moe with noise on its inputs is recomputed inside a graph",
     "moe_input_jitter_eps = {moe_input_jitter_eps}, and moe is recomputed inside a graph",
     "unset moe_input_jitter_eps, or take moe out of recompute_modules", kNoRewind, kAll,
     [](const Config& c) { return rewinds_in_graph(c, moe) && recomputes(c, "moe") && c.moe_input_jitter_eps; }},
    {"CF507", error, "shared experts of gathered FP8 or FP4 weights are recomputed inside a local graph",
     "shared_experts cannot be recomputed inside local graphs with gtp_weight_remat_size = {gtp_weight_remat_size}, "
     "fp8 = {fp8}, fp4 = {fp4}",
     "take shared_experts out of recompute_modules, or capture the full iteration",
     "recomputation in FP8 needs backward(), and local graphs warm up with grad()", kFrameworks,
     [](const Config& c) {
       const bool captured = c.cuda_graph_modules.empty() || has(c, moe) || has(c, moe_router);
       return c.cuda_graph_impl == CudaGraphImpl::local && c.gtp_weight_remat_size > 1 && (c.fp8 || c.fp4) &&
              c.moe_shared_expert_intermediate_size && !c.moe_shared_expert_overlap && captured &&
              recomputes(c, "shared_experts");
     }},
    {"CF508", error, "local graphs with offloading of more than experts' activations",
     "local graphs go with offload_modules expert_fc1, moe_act and fused_group_mlp alone, got {offload_modules}",
     "offload these alone, or use transformer_engine graphs",
     "other modules lie inside the graphs, whose memory does not move", kFrameworks,
     [](const Config& c) {
       return c.fine_grained_activation_offloading && c.cuda_graph_impl == CudaGraphImpl::local &&
              !offloads_experts_alone(c);
     }},
    {"CF509", error, "local graphs of whole layers with activation offloading",
     "fine_grained_activation_offloading cannot be combined with local graphs of whole layers",
     "name the modules to capture in cuda_graph_modules", "what is offloaded would lie inside the graph", kFrameworks,
     [](const Config& c) {
       return c.fine_grained_activation_offloading && c.cuda_graph_impl == CudaGraphImpl::local && whole_layers(c);
     }},
    {"CF510", error, "moe is captured with activation offloading",
     "fine_grained_activation_offloading cannot be combined with moe in cuda_graph_modules = {cuda_graph_modules}",
     "leave moe out", "experts with a fixed capacity are not offloaded", kFrameworks,
     [](const Config& c) { return c.fine_grained_activation_offloading && per_layer(c) && has(c, moe); }},
    {"CF511", error, "activation offloading without a warm-up step",
     "fine_grained_activation_offloading needs cuda_graph_warmup_steps of 1 or more, got {cuda_graph_warmup_steps}",
     "set it to 3", "an eager step has to show first what is offloaded, and in which order", kFrameworks,
     [](const Config& c) {
       return c.fine_grained_activation_offloading && captures(c) && c.cuda_graph_warmup_steps <= 0;
     }},
    {"CF512", error, "activation offloading in a full iteration without a limit",
     "fine_grained_offloading_max_inflight_offloads must be 0 or more with cuda_graph_impl = {cuda_graph_impl}, got "
     "{fine_grained_offloading_max_inflight_offloads}",
     "set it, 1 for a start", "a graph cannot find out while it runs how many copies may wait",
     kFrameworks,
     [](const Config& c) {
       return c.fine_grained_activation_offloading && full_iteration(c) &&
              c.fine_grained_offloading_max_inflight_offloads.value_or(-1) < 0;
     }},

    {"CF601", error, "packed sequences of different lengths are captured",
     "packed sequences need pad_to_max_length with cuda_graph_impl = {cuda_graph_impl}",
     "set dataset.pad_to_max_length to true", kFixedShapes, kAll,
     [](const Config& c) { return c.enable_offline_packing && captures_training(c) && !c.pad_to_max_length; }},
    {"CF602", error, "attention over packed sequences is captured, and their number changes",
     "graphs that hold packed attention need pad_cu_seqlens (cuda_graph_impl = {cuda_graph_impl}, cuda_graph_modules = "
     "{cuda_graph_modules})",
     "set dataset.offline_packing_specs.pad_cu_seqlens to true, or leave attn out of cuda_graph_modules",
     "the list of boundaries is an input of attention, and a graph has the shapes of its capture", kAll,
     [](const Config& c) {
       const bool captured = full_iteration(c) || (captures_training(c) && (whole_layers(c) || has(c, attn)));
       return c.enable_offline_packing && captured && !c.pad_cu_seqlens;
     }},
    {"CF603", error, "boundaries of packed sequences are padded, and sequences are not",
     "pad_cu_seqlens needs pad_to_max_length", "set dataset.pad_to_max_length to true",
     "the boundary that is added is the end of the padding", kAll,
     [](const Config& c) { return c.pad_cu_seqlens && !c.pad_to_max_length; }},
    {"CF604", error, "sequences are packed while they are loaded, and something is captured",
     "packing_buffer_size = {packing_buffer_size} cannot be combined with cuda_graph_impl = {cuda_graph_impl}, "
     "vision_cuda_graph_impl = {vision_cuda_graph_impl}",
     "pack before the training (enable_offline_packing), or capture nothing",
     "what is packed while loading has other lengths in each step", kAll,
     [](const Config& c) {
       return c.packing_buffer_size && (captures(c) || c.vision_cuda_graph_impl != CudaGraphImpl::none);
     }},
    {"CF605", error, "the router is captured, and packed sequences have a padding mask",
     "the router cannot be captured with packed sequences: cuda_graph_modules = {cuda_graph_modules}",
     "capture attn alone", "graphs of the router do not take the padding mask of packed sequences", kBridge,
     [](const Config& c) {
       const bool router = whole_layers(c) || has(c, moe) || has(c, moe_router) || has(c, moe_preprocess);
       return c.cuda_graph_impl == CudaGraphImpl::transformer_engine && has_experts(c) && packs(c) && router;
     }},
    {"CF606", error, "sequence lengths change, and something is captured",
     "variable_seq_lengths cannot be combined with cuda_graph_impl = {cuda_graph_impl}",
     "pad to one length, or to a few with a graph for each", kFixedShapes, kAll,
     [](const Config& c) { return c.variable_seq_lengths && captures_training(c); }},
    {"CF607", error, "vision sequences are longer than their graphs",
     "sequences of {vision_seq_length} do not fit max_vision_cuda_graph_seq_length = "
     "{max_vision_cuda_graph_seq_length}",
     "raise max_vision_cuda_graph_seq_length, or set vision_cuda_graph_impl to none",
     "shorter sequences are padded to the length of the graph, longer ones have no place in it", kAll,
     [](const Config& c) {
       return c.vision_cuda_graph_impl != CudaGraphImpl::none && c.max_vision_cuda_graph_seq_length &&
              c.vision_seq_length.value_or(0) > *c.max_vision_cuda_graph_seq_length;
     }},
    {"CF608", error, "the batch grows, and the whole iteration is captured",
     "rampup_batch_size = {rampup_batch_size} cannot be combined with cuda_graph_impl = {cuda_graph_impl}",
     "start with the full batch, or capture layers",
     "a graph of the iteration holds a fixed number of microbatches; with others it would go on computing the first "
     "ones",
     kAll, [](const Config& c) { return full_iteration(c) && !c.rampup_batch_size.empty(); }},

    {"CF701", error, "layers are captured whose communication overlaps with another microbatch",
     "cuda_graph_modules = {cuda_graph_modules} cannot have moe or mlp with overlap_moe_expert_parallel_comm",
     "name attn, moe_router and moe_preprocess alone",
     "moe and mlp are cut into pieces that alternate with those of another microbatch", kFrameworks,
     [](const Config& c) {
       return c.cuda_graph_impl == CudaGraphImpl::transformer_engine && c.overlap_moe_expert_parallel_comm &&
              (has(c, moe) || has(c, mlp));
     }},
    {"CF702", error, "delayed weight gradients are captured without fused accumulation",
     "delay_wgrad_compute inside a graph needs gradient_accumulation_fusion",
     "set gradient_accumulation_fusion to true",
     "plain accumulation adds to gradients whose addresses change", kFrameworks,
     [](const Config& c) { return delays_wgrad_in_graph(c) && !c.gradient_accumulation_fusion; }},
    {"CF703", error, "delayed weight gradients of attention with a bias are captured",
     "delay_wgrad_compute inside a graph goes without biases in attention: add_bias_linear = {add_bias_linear}, "
     "add_qkv_bias = {add_qkv_bias}",
     "set both to false, or take attn out of cuda_graph_modules",
     "there is no delayed part for the gradients of these biases yet", kFrameworks,
     [](const Config& c) {
       return delays_wgrad_in_graph(c) && has(c, attn) && (c.add_bias_linear || c.add_qkv_bias);
     }},
    {"CF704", error, "Megatron-FSDP 2 is combined with graphs",
     "Megatron-FSDP 2 supports no graphs: cuda_graph_impl = {cuda_graph_impl}, megatron_fsdp_cuda_graph_mode = "
     "{megatron_fsdp_cuda_graph_mode}",
     "set megatron_fsdp_version to 1, or capture nothing",
     "it owns the memory of parameters and gradients, and graphs hold that by its addresses", kFrameworks,
     [](const Config& c) { return is_fsdp(c, 2) && (captures(c) || c.megatron_fsdp_cuda_graph_mode); }},
    {"CF705", error, "Megatron-FSDP 2 is combined with a graph of the optimizer",
     "Megatron-FSDP 2 supports no optimizer_cuda_graph",
     "set megatron_fsdp_version to 1, or optimizer_cuda_graph to false",
     "it owns the memory of parameters and gradients, and graphs hold that by its addresses", kFrameworks,
     [](const Config& c) { return is_fsdp(c, 2) && c.optimizer_cuda_graph; }},
    {"CF706", error, "sharded layers are captured whose communication overlaps with another microbatch",
     "overlap_moe_expert_parallel_comm with use_megatron_fsdp cannot be combined with cuda_graph_impl = "
     "{cuda_graph_impl}",
     "capture the full iteration, or nothing", "parameters are gathered in between the pieces of a layer", kFrameworks,
     [](const Config& c) { return c.use_megatron_fsdp && c.overlap_moe_expert_parallel_comm && per_layer(c); }},
    {"CF707", fixed, "Megatron-FSDP is not in its mode for graphs",
     "use_megatron_fsdp with cuda_graph_impl = {cuda_graph_impl} needs its mode for graphs",
     "megatron_fsdp_cuda_graph_mode is set to true", "outside of it, it follows pointers on the host", kMegatron,
     [](const Config& c) { return is_fsdp(c, 1) && captures(c) && !c.megatron_fsdp_cuda_graph_mode; },
     [](Config& c) { c.megatron_fsdp_cuda_graph_mode = true; }},
    {"CF708", fixed, "Megatron-FSDP gathers parameters outside of the iteration that is captured",
     "parameters cannot be gathered in the optimizer's step with cuda_graph_impl = {cuda_graph_impl}",
     "fsdp_all_gather_in_start_param_sync is set to false",
     "the iteration's graph would wait for work that was launched outside of it", kMegatron,
     [](const Config& c) {
       return is_fsdp(c, 1) && full_iteration(c) && c.fsdp_all_gather_in_start_param_sync.value_or(true);
     },
     [](Config& c) { c.fsdp_all_gather_in_start_param_sync = false; }},
    {"CF709", error, "hybrid context parallelism is combined with graphs",
     "hybrid_context_parallel cannot be combined with cuda_graph_impl = {cuda_graph_impl}",
     "switch it off, or capture nothing", "which ranks take part changes from microbatch to microbatch", kFrameworks,
     [](const Config& c) { return c.hybrid_context_parallel && captures(c); }},

    {"CF801", error, "growing segments are registered by NCCL, with graphs of Transformer Engine",
     "pytorch_cuda_alloc_conf = {pytorch_cuda_alloc_conf} needs NCCL_GRAPH_REGISTER=0, and it is {nccl_graph_register}",
     "set NCCL_GRAPH_REGISTER=0 in the environment",
     "NCCL registers buffers of a graph by their segment, which grows later: illegal memory accesses follow",
     kFrameworks,
     [](const Config& c) {
       return c.cuda_graph_impl == CudaGraphImpl::transformer_engine && registers_growing_segments(c);
     }},
    {"CF802", error, "growing segments are registered by NCCL, on GPUs before compute capability 10",
     "pytorch_cuda_alloc_conf = {pytorch_cuda_alloc_conf} needs NCCL_GRAPH_REGISTER=0 on these GPUs "
     "(compute_capability = {compute_capability}), and it is {nccl_graph_register}",
     "set NCCL_GRAPH_REGISTER=0 in the environment",
     "NCCL registers buffers of a graph by their segment, which grows later: illegal memory accesses follow",
     kFrameworks,
     [](const Config& c) {
       return captures(c) && c.cuda_graph_impl != CudaGraphImpl::transformer_engine && registers_growing_segments(c) &&
              c.compute_capability.value_or(0.0) < 10.0;
     }},
    {"CF803", warning, "growing segments may be registered by NCCL",
     "pytorch_cuda_alloc_conf = {pytorch_cuda_alloc_conf} goes with collectives in graphs only where "
     "NCCL_GRAPH_REGISTER=0, and it is {nccl_graph_register}",
     "set NCCL_GRAPH_REGISTER=0 in the environment where a graph holds collectives",
     "NCCL registers buffers of a graph by their segment, which grows later: illegal memory accesses follow", kPianola,
     [](const Config& c) { return captures(c) && registers_growing_segments(c); }},
    {"CF804", error, "gathered weights on compute capability 10 without priorities in graphs",
     "gtp_weight_remat_size = {gtp_weight_remat_size} needs CUDA_GRAPHS_USE_NODE_PRIORITY=1 on compute capability "
     "{compute_capability}, and it is {cuda_graphs_use_node_priority}",
     "set CUDA_GRAPHS_USE_NODE_PRIORITY=1 in the environment",
     "without priorities the gathering is not hidden behind matrix products", kFrameworks,
     [](const Config& c) {
       return captures(c) && c.gtp_weight_remat_size > 1 && c.compute_capability.value_or(0.0) >= 10.0 &&
              c.cuda_graphs_use_node_priority != 1;
     }},
    {"CF805", error, "Transformer Engine's loss is captured before version 2.7",
     "cross_entropy_fusion_impl = {cross_entropy_fusion_impl} with cuda_graph_impl = {cuda_graph_impl} needs "
     "Transformer Engine 2.7.0, and te_version = {te_version}",
     "use Transformer Engine 2.7.0 or newer, or the native loss",
     "older ones compare labels on the host", kAll,
     [](const Config& c) {
       return full_iteration(c) && c.cross_entropy_loss_fusion && c.cross_entropy_fusion_impl == "te" &&
              older(c.te_version, "2.7.0");
     }},
    {"CF806", error, "delayed weight gradients with graphs of Transformer Engine before version 2.10",
     "delay_wgrad_compute with cuda_graph_impl = {cuda_graph_impl} needs Transformer Engine 2.10.0, and te_version = "
     "{te_version}",
     "use Transformer Engine 2.10.0 or newer",
     "it is the first version whose graphs of layers take delayed weight gradients", kFrameworks,
     [](const Config& c) {
       return c.cuda_graph_impl == CudaGraphImpl::transformer_engine && c.delay_wgrad_compute &&
              older(c.te_version, "2.10.0");
     }},
    {"CF807", error, "delayed weight gradients are captured before Transformer Engine 2.12",
     "delay_wgrad_compute inside a graph needs Transformer Engine 2.12.0, and te_version = {te_version}",
     "use Transformer Engine 2.12.0 or newer",
     "it is the first version whose graphs take those of attention and of shared experts", kFrameworks,
     [](const Config& c) { return delays_wgrad_in_graph(c) && older(c.te_version, "2.12.0"); }},
    {"CF808", error, "offloaded modules are captured before Transformer Engine 2.14",
     "offloading {offload_modules} inside a graph needs Transformer Engine 2.14.0, and te_version = {te_version}",
     "use Transformer Engine 2.14.0 or newer, or offload modules outside of the graphs",
     "it is the first version whose graphs wait for copies to the host and back", kFrameworks,
     [](const Config& c) { return offloads_in_graph(c) && older(c.te_version, "2.14.0"); }},
    {"CF809", error, "offloaded modules are captured before PyTorch 2.9",
     "offloading {offload_modules} inside a graph needs PyTorch 2.9.0, and torch_version = {torch_version}",
     "use PyTorch 2.9.0 or newer, or offload modules outside of the graphs",
     "it is the first version in which such a graph can wait for copies outside of it", kFrameworks,
     [](const Config& c) { return offloads_in_graph(c) && older(c.torch_version, "2.9.0"); }},

    {"CF901", error, "inference is to be captured by what cannot",
     "inference_cuda_graph_scope = {inference_cuda_graph_scope} does not go with cuda_graph_impl = {cuda_graph_impl}",
     "with local choose layer or block; with all others leave it out", "only local graphs serve inference", kFrameworks,
     [](const Config& c) {
       const bool is_local = c.cuda_graph_impl == CudaGraphImpl::local;
       return is_local == (inference_scope(c) == InferenceGraphScope::none);
     }},
    {"CF902", error, "inference of blocks in FP8 is captured without the layers for it",
     "fp8 = {fp8} with inference_cuda_graph_scope = block needs transformer_impl = inference_optimized, got "
     "{transformer_impl}",
     "set transformer_impl to inference_optimized", "only these layers have FP8 inference that can be captured",
     kFrameworks,
     [](const Config& c) {
       return inference_scope(c) == InferenceGraphScope::block && c.fp8 &&
              c.transformer_impl != TransformerImpl::inference_optimized;
     }},
    {"CF903", error, "inference of blocks in FP8 is captured with scales other than mxfp8",
     "fp8 = {fp8} with inference_cuda_graph_scope = block needs fp8_recipe = mxfp8, got {fp8_recipe}",
     "set fp8_recipe to mxfp8", "it is the only recipe that these layers support there", kFrameworks,
     [](const Config& c) {
       return inference_scope(c) == InferenceGraphScope::block && c.fp8 && c.fp8_recipe != "mxfp8";
     }},
    {"CF904", error, "the number of inference graphs has no meaning",
     "inference_dynamic_batching_num_cuda_graphs must be 1 or more, or -1, got "
     "{inference_dynamic_batching_num_cuda_graphs}",
     "set it to 16, or to -1 for as many as there are batch sizes", "local graphs serve inference by batch size",
     kFrameworks,
     [](const Config& c) {
       const int graphs = c.inference_dynamic_batching_num_cuda_graphs;
       return c.cuda_graph_impl == CudaGraphImpl::local && graphs <= 0 && graphs != -1;
     }},
    {"CF905", error, "pipelined inference is combined with graphs",
     "inference_batch_times_seqlen_threshold = {inference_batch_times_seqlen_threshold} cannot be combined with "
     "cuda_graph_impl = {cuda_graph_impl}",
     "set it to -1, or capture nothing", "it cuts batches into microbatches whose sizes follow the requests",
     kFrameworks,
     [](const Config& c) { return captures(c) && c.inference_batch_times_seqlen_threshold > -1; }},
    {"CF906", error, "the training phase of reinforcement learning is to be captured, and nothing is",
     "rl_training_cuda_graphs needs graphs, and cuda_graph_impl = {cuda_graph_impl}",
     "set cuda_graph_impl, or rl_training_cuda_graphs to false", "there are no graphs to train with", kFrameworks,
     [](const Config& c) { return c.rl_training_cuda_graphs && !captures(c); }},
    {"CF907", error, "graphs are to stay alive in reinforcement learning, and there are none",
     "rl_persist_cuda_graphs needs graphs, and cuda_graph_impl = {cuda_graph_impl}",
     "set cuda_graph_impl, or rl_persist_cuda_graphs to false", "there are no graphs that could stay alive",
     kFrameworks,
     [](const Config& c) { return c.rl_persist_cuda_graphs && !captures(c); }},
    {"CF908", warning, "inference is configured, which Pianola leaves to its caller",
     "inference_cuda_graph_scope = {inference_cuda_graph_scope} has no effect in Pianola",
     "capture inference with pianola::Graph or a graphed callable", "Pianola captures what it is given", kPianola,
     [](const Config& c) {
       return c.inference_cuda_graph_scope.value_or(InferenceGraphScope::none) != InferenceGraphScope::none;
     }},
});

}  // namespace

std::span<const ConfigRule> config_table() noexcept { return kRules; }

}  // namespace pianola

#include <pianola/config/rule.hpp>

#include <pianola/config/check.hpp>
#include <pianola/config/field.hpp>
#include <pianola/core/error.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <ostream>
#include <set>
#include <string>
#include <vector>

namespace pianola::rule_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using C = CudaGraphConfig;

using enum CudaGraphModule;
using enum ConfigTarget;

constexpr auto kNone = CudaGraphImpl::none;
constexpr auto kLocal = CudaGraphImpl::local;
constexpr auto kEngine = CudaGraphImpl::transformer_engine;
constexpr auto kFull = CudaGraphImpl::full_iteration;

// Valid for every target, and complete: nothing has to be fixed.
C valid(CudaGraphImpl impl, ConfigTarget target) {
  C c{.target = target, .cuda_graph_impl = impl, .use_te_rng_tracker = true, .te_rng_tracker = true};
  if (target != pianola) c.check_for_nan_in_loss = c.check_for_nan_in_grad = false;
  c.attention_dropout = c.hidden_dropout = 0.0;
  return c;
}

struct Case {
  const char* id;
  ConfigTarget target;
  CudaGraphImpl impl;
  void (*wrong)(C& c);  // violates the rule, and no other
  void (*near)(C& c);   // as alike as can be, and violates nothing
  const char* message;

  [[nodiscard]] C made(void (*change)(C& c)) const {
    C c = valid(impl, target);
    change(c);
    return c;
  }
  friend void PrintTo(const Case& one, std::ostream* out) { *out << one.id; }
};

std::vector<std::string> ids_of(const ConfigReport& report) {
  std::vector<std::string> ids;
  for (const ConfigFinding& finding : report.findings) ids.emplace_back(finding.rule->id);
  return ids;
}

void experts(C& c) { c.num_moe_experts = 8; }
void dropping(C& c) {
  experts(c);
  c.moe_expert_capacity_factor = 1.0;
  c.moe_pad_expert_input_to_capacity = true;
}
void hybridep(C& c) {
  c.moe_token_dispatcher_type = TokenDispatcher::flex;
  c.moe_flex_dispatcher_backend = "hybridep";
}
void recompute(C& c, const char* module) {
  c.recompute_granularity = RecomputeGranularity::selective;
  c.recompute_modules = {module};
}
void offload(C& c, const char* module) {
  c.fine_grained_activation_offloading = true;
  c.offload_modules = {module};
}
void packed(C& c) { c.enable_offline_packing = c.pad_to_max_length = c.pad_cu_seqlens = true; }
void delayed_wgrad(C& c) {
  c.cuda_graph_modules = {attn};
  c.delay_wgrad_compute = c.gradient_accumulation_fusion = true;
  c.add_bias_linear = false;
}
void fsdp(C& c, int version) {
  c.use_megatron_fsdp = true;
  c.megatron_fsdp_version = version;
}
void growing(C& c) { c.pytorch_cuda_alloc_conf = "max_split_size_mb:64,expandable_segments:True"; }
void engine_loss(C& c) {
  c.cross_entropy_loss_fusion = true;
  c.cross_entropy_fusion_impl = "te";
}
void fp8_blocks(C& c) {
  c.inference_cuda_graph_scope = InferenceGraphScope::block;
  c.fp8 = "e4m3";
  c.fp8_recipe = "mxfp8";
  c.transformer_impl = TransformerImpl::inference_optimized;
}

const Case kCases[] = {
    {"CF101", pianola, kNone,
     [](C& c) {
       c.cuda_graph_modules = {attn, mlp};
     },
     [](C&) {}, "cuda_graph_modules = [\"attn\", \"mlp\"] has no effect with cuda_graph_impl = none"},
    {"CF102", pianola, kFull, [](C& c) { c.cuda_graph_modules = {attn}; }, [](C&) {},
     "cuda_graph_modules = [\"attn\"] cannot be combined with cuda_graph_impl = full_iteration"},
    {"CF103", bridge, kLocal, [](C& c) { c.cuda_graph_modules = {attn}; },
     [](C& c) { c.inference_cuda_graph_scope = InferenceGraphScope::layer; },
     "Megatron-Bridge has cuda_graph_impl = local for full iterations and for inference only"},
    {"CF104", pianola, kFull, [](C& c) { c.cuda_graph_warmup_steps = -1; }, [](C& c) { c.cuda_graph_warmup_steps = 1; },
     "cuda_graph_warmup_steps must be 0 or more, got -1"},
    {"CF105", pianola, kFull, [](C& c) { c.cuda_graph_warmup_steps = 0; }, [](C& c) { c.cuda_graph_warmup_steps = 1; },
     "nothing runs before the capture: cuda_graph_warmup_steps = 0"},
    {"CF106", megatron, kLocal,
     [](C& c) {
       c.gtp_weight_remat_size = 4;
       c.cuda_graph_warmup_steps = 1;
     },
     [](C& c) {
       c.gtp_weight_remat_size = 4;
       c.cuda_graph_warmup_steps = 2;
     },
     "gtp_weight_remat_size = 4 needs two warm-up steps, and there are 1"},
    {"CF107", pianola, kLocal, [](C& c) { c.cuda_graph_use_single_mempool = false; },
     [](C& c) {
       c.cuda_graph_use_single_mempool = false;
       c.optimizer_cuda_graph = true;
       c.capturable = true;
     },
     "cuda_graph_use_single_mempool = false has no effect with cuda_graph_impl = local"},
    {"CF108", pianola, kFull, [](C& c) { c.cuda_graph_retain_backward_graph = true; }, [](C&) {},
     "cuda_graph_retain_backward_graph has no effect with cuda_graph_impl = full_iteration"},
    {"CF109", bridge, kLocal,
     [](C& c) {
       c.inference_cuda_graph_scope = InferenceGraphScope::layer;
       c.use_transformer_engine_full_layer_spec = true;
       recompute(c, "layernorm");
     },
     [](C& c) {
       c.inference_cuda_graph_scope = InferenceGraphScope::layer;
       c.use_transformer_engine_full_layer_spec = true;
     },
     "cpu_offloading = false nor with recompute_granularity = selective"},
    {"CF110", megatron, kLocal, [](C& c) { c.pipeline_model_parallel_size = 4; }, [](C&) {},
     "pipeline_model_parallel_size = 4: each stage holds graphs"},

    {"CF201", pianola, kFull, [](C& c) { c.te_rng_tracker = false; }, [](C&) {},
     "use_te_rng_tracker = true and te_rng_tracker = false are one choice"},
    {"CF202", pianola, kFull, [](C& c) { c.use_te_rng_tracker = c.te_rng_tracker = {}; }, [](C&) {},
     "cuda_graph_impl = full_iteration needs random number states that a graph can register"},
    {"CF203", pianola, kFull,
     [](C& c) {
       c.use_te_rng_tracker = {};
       c.te_rng_tracker = false;
     },
     [](C& c) { c.cuda_graph_impl = kNone, c.use_te_rng_tracker = c.te_rng_tracker = false; },
     "use_te_rng_tracker = unset, te_rng_tracker = false"},

    {"CF301", bridge, kFull, [](C& c) { c.check_for_nan_in_loss = {}; }, [](C&) {},
     "the loss cannot be looked at inside cuda_graph_impl = full_iteration"},
    {"CF302", bridge, kFull, [](C& c) { c.check_for_nan_in_loss = true; },
     [](C& c) { c.target = pianola, c.check_for_nan_in_loss = true; },
     "check_for_nan_in_loss must be off with cuda_graph_impl = full_iteration"},
    {"CF303", megatron, kFull, [](C& c) { c.check_for_nan_in_grad = {}; }, [](C&) {},
     "gradients cannot be looked at inside cuda_graph_impl = full_iteration"},
    {"CF304", megatron, kFull, [](C& c) { c.check_for_nan_in_grad = true; },
     [](C& c) { c.target = pianola, c.check_for_nan_in_grad = true; },
     "check_for_nan_in_grad must be off with cuda_graph_impl = full_iteration"},
    {"CF305", pianola, kFull, [](C& c) { c.optimizer_cuda_graph = true; },
     [](C& c) { c.optimizer_cuda_graph = true, c.capturable = true; },
     "optimizer_cuda_graph needs an optimizer whose state is on the device"},
    {"CF306", pianola, kFull, [](C& c) { c.optimizer_cuda_graph = true, c.capturable = false; },
     [](C& c) { c.capturable = false; }, "optimizer_cuda_graph cannot be combined with capturable = false"},
    {"CF307", pianola, kFull,
     [](C& c) {
       c.optimizer_cuda_graph = c.log_num_zeros_in_grad = true;
       c.capturable = true;
     },
     [](C& c) { c.log_num_zeros_in_grad = true; },
     "optimizer_cuda_graph cannot be combined with log_num_zeros_in_grad"},

    {"CF401", megatron, kLocal,
     [](C& c) {
       experts(c);
       c.cuda_graph_modules = {moe_router};
     },
     [](C& c) {
       experts(c);
       c.cuda_graph_modules = {moe_preprocess, moe_router};
     },
     "and cuda_graph_modules = [\"moe_router\"]"},
    {"CF402", pianola, kEngine,
     [](C& c) {
       dropping(c);
       c.cuda_graph_modules = {moe, moe_router};
     },
     [](C& c) {
       dropping(c);
       c.cuda_graph_modules = {moe};
     },
     "cuda_graph_modules has moe and moe_router"},
    {"CF403", pianola, kEngine,
     [](C& c) {
       experts(c);
       c.cuda_graph_modules = {attn, moe_preprocess};
     },
     [](C& c) {
       experts(c);
       c.cuda_graph_modules = {attn, moe_router, moe_preprocess};
     },
     "cuda_graph_modules = [\"attn\", \"moe_preprocess\"] has moe_preprocess and lacks moe_router"},
    {"CF404", pianola, kEngine, [](C& c) { c.cuda_graph_modules = {moe_router}; },
     [](C& c) {
       c.num_moe_experts = 2;
       c.cuda_graph_modules = {moe_router};
     },
     "needs experts, and num_moe_experts = unset"},
    {"CF405", pianola, kEngine,
     [](C& c) {
       experts(c);
       c.moe_layer_freq = {1, 1, 1};
       c.cuda_graph_modules = {mlp};
     },
     [](C& c) {
       experts(c);
       c.moe_layer_freq = {0, 1, 1};
       c.cuda_graph_modules = {mlp};
     },
     "cuda_graph_modules has mlp, and moe_layer_freq = [1, 1, 1] leaves no dense layer"},
    {"CF406", pianola, kEngine,
     [](C& c) {
       dropping(c);
       c.moe_pad_expert_input_to_capacity = false;
       c.cuda_graph_modules = {moe};
     },
     [](C& c) {
       dropping(c);
       c.cuda_graph_modules = {moe};
     },
     "moe_expert_capacity_factor = 1, moe_pad_expert_input_to_capacity = false"},
    {"CF407", pianola, kEngine,
     [](C& c) {
       experts(c);
       c.moe_token_dispatcher_type = TokenDispatcher::alltoall;
       c.moe_router_padding_for_fp8 = true;
       c.cuda_graph_modules = {moe_router, moe_preprocess};
     },
     [](C& c) {
       experts(c);
       c.moe_token_dispatcher_type = TokenDispatcher::alltoall;
       c.cuda_graph_modules = {moe_router, moe_preprocess};
     },
     "moe_expert_capacity_factor = unset, moe_router_padding_for_fp8 = true"},
    {"CF408", pianola, kFull, experts, dropping, "a graph of everything holds the experts too"},
    {"CF409", bridge, kNone, hybridep,
     [](C& c) {
       hybridep(c);
       c.moe_hybridep_pad_uneven_dispatch_inputs = true;
     },
     "ranks may send different numbers of tokens"},
    {"CF410", bridge, kEngine,
     [](C& c) {
       hybridep(c);
       c.moe_hybridep_pad_uneven_dispatch_inputs = true;
     },
     hybridep, "moe_hybridep_pad_uneven_dispatch_inputs cannot be combined with cuda_graph_impl = transformer_engine"},

    {"CF501", pianola, kEngine, [](C& c) { c.cpu_offloading = true; },
     [](C& c) { c.cuda_graph_impl = kFull, c.cpu_offloading = true; },
     "cpu_offloading cannot be combined with cuda_graph_impl = transformer_engine"},
    {"CF502", pianola, kLocal, [](C& c) { c.recompute_granularity = RecomputeGranularity::full; },
     [](C& c) { c.cuda_graph_impl = kFull, c.recompute_granularity = RecomputeGranularity::full; },
     "recompute_granularity = full cannot be combined with cuda_graph_impl = local"},
    {"CF503", pianola, kEngine,
     [](C& c) {
       experts(c);
       c.cuda_graph_modules = {moe_router};
       recompute(c, "moe");
     },
     [](C& c) {
       experts(c);
       c.cuda_graph_modules = {moe_router};
       recompute(c, "moe_act");
     },
     "recomputing moe covers moe_router, which cuda_graph_impl = transformer_engine captures"},
    {"CF504", megatron, kFull,
     [](C& c) {
       c.recompute_granularity = RecomputeGranularity::selective;
       c.attention_dropout = 0.25;
     },
     [](C& c) {
       c.target = pianola;
       c.recompute_granularity = RecomputeGranularity::selective;
       c.attention_dropout = 0.25;
     },
     "attention_dropout = 0.25 is not 0, and core_attn is recomputed inside a graph"},
    {"CF505", pianola, kEngine,
     [](C& c) {
       c.cuda_graph_modules = {mlp};
       recompute(c, "mlp");
       c.hidden_dropout = 0.5;
     },
     [](C& c) {
       c.cuda_graph_modules = {attn};
       recompute(c, "mlp");
       c.hidden_dropout = 0.5;
     },
     "hidden_dropout = 0.5 is not 0, and [\"mlp\"] are recomputed inside a graph"},
    {"CF506", pianola, kEngine,
     [](C& c) {
       dropping(c);
       c.cuda_graph_modules = {moe};
       recompute(c, "moe");
       c.moe_input_jitter_eps = 0.01;
     },
     [](C& c) {
       dropping(c);
       c.cuda_graph_modules = {moe};
       recompute(c, "moe");
     },
     "moe_input_jitter_eps = 0.01, and moe is recomputed inside a graph"},
    {"CF507", megatron, kLocal,
     [](C& c) {
       c.gtp_weight_remat_size = 2;
       c.fp8 = "e4m3";
       c.moe_shared_expert_intermediate_size = 64;
       recompute(c, "shared_experts");
     },
     [](C& c) {
       c.gtp_weight_remat_size = 2;
       c.fp8 = "e4m3";
       c.moe_shared_expert_intermediate_size = 64;
       c.moe_shared_expert_overlap = true;
       recompute(c, "shared_experts");
     },
     "gtp_weight_remat_size = 2, fp8 = e4m3, fp4 = unset"},
    {"CF508", megatron, kLocal,
     [](C& c) {
       c.cuda_graph_modules = {attn};
       offload(c, "core_attn");
     },
     [](C& c) {
       c.cuda_graph_modules = {attn};
       offload(c, "moe_act");
     },
     "fused_group_mlp alone, got [\"core_attn\"]"},
    {"CF509", megatron, kLocal, [](C& c) { offload(c, "moe_act"); },
     [](C& c) {
       c.cuda_graph_modules = {attn};
       offload(c, "moe_act");
     },
     "cannot be combined with local graphs of whole layers"},
    {"CF510", megatron, kEngine,
     [](C& c) {
       dropping(c);
       c.cuda_graph_modules = {moe};
       offload(c, "moe_act");
     },
     [](C& c) {
       dropping(c);
       c.cuda_graph_modules = {attn};
       offload(c, "moe_act");
     },
     "cannot be combined with moe in cuda_graph_modules = [\"moe\"]"},
    {"CF511", megatron, kEngine,
     [](C& c) {
       c.cuda_graph_warmup_steps = 0;
       offload(c, "moe_act");
     },
     [](C& c) {
       c.cuda_graph_warmup_steps = 1;
       offload(c, "moe_act");
     },
     "needs cuda_graph_warmup_steps of 1 or more, got 0"},
    {"CF512", megatron, kFull, [](C& c) { offload(c, "moe_act"); },
     [](C& c) {
       offload(c, "moe_act");
       c.fine_grained_offloading_max_inflight_offloads = 0;
     },
     "must be 0 or more with cuda_graph_impl = full_iteration, got unset"},

    {"CF601", pianola, kEngine,
     [](C& c) {
       c.cuda_graph_modules = {mlp};
       c.enable_offline_packing = true;
     },
     [](C& c) {
       c.cuda_graph_modules = {mlp};
       c.enable_offline_packing = c.pad_to_max_length = true;
     },
     "packed sequences need pad_to_max_length with cuda_graph_impl = transformer_engine"},
    {"CF602", pianola, kEngine,
     [](C& c) {
       packed(c);
       c.cuda_graph_modules = {attn};
       c.pad_cu_seqlens = false;
     },
     [](C& c) {
       packed(c);
       c.cuda_graph_modules = {attn};
     },
     "need pad_cu_seqlens (cuda_graph_impl = transformer_engine, cuda_graph_modules = [\"attn\"])"},
    {"CF603", pianola, kNone, [](C& c) { c.pad_cu_seqlens = true; },
     [](C& c) { c.pad_cu_seqlens = c.pad_to_max_length = true; }, "pad_cu_seqlens needs pad_to_max_length"},
    {"CF604", pianola, kNone,
     [](C& c) {
       c.packing_buffer_size = 100;
       c.vision_cuda_graph_impl = kEngine;
     },
     [](C& c) { c.packing_buffer_size = 100; },
     "packing_buffer_size = 100 cannot be combined with cuda_graph_impl = none, vision_cuda_graph_impl = "
     "transformer_engine"},
    {"CF605", bridge, kEngine,
     [](C& c) {
       experts(c);
       packed(c);
       c.cuda_graph_modules = {attn, moe_router};
     },
     [](C& c) {
       experts(c);
       packed(c);
       c.cuda_graph_modules = {attn};
     },
     "the router cannot be captured with packed sequences: cuda_graph_modules = [\"attn\", \"moe_router\"]"},
    {"CF606", pianola, kFull, [](C& c) { c.variable_seq_lengths = true; },
     [](C& c) { c.cuda_graph_impl = kNone, c.variable_seq_lengths = true; },
     "variable_seq_lengths cannot be combined with cuda_graph_impl = full_iteration"},
    {"CF607", pianola, kNone,
     [](C& c) {
       c.vision_cuda_graph_impl = kEngine;
       c.max_vision_cuda_graph_seq_length = 1024;
       c.vision_seq_length = 1025;
     },
     [](C& c) {
       c.vision_cuda_graph_impl = kEngine;
       c.max_vision_cuda_graph_seq_length = 1024;
       c.vision_seq_length = 1024;
     },
     "sequences of 1025 do not fit max_vision_cuda_graph_seq_length = 1024"},
    {"CF608", pianola, kFull,
     [](C& c) {
       c.rampup_batch_size = {32, 32, 1000};
     },
     [](C& c) {
       c.cuda_graph_impl = kLocal, c.rampup_batch_size = {32, 32, 1000};
     },
     "rampup_batch_size = [32, 32, 1000] cannot be combined with cuda_graph_impl = full_iteration"},

    {"CF701", megatron, kEngine,
     [](C& c) {
       c.overlap_moe_expert_parallel_comm = true;
       c.cuda_graph_modules = {attn, mlp};
     },
     [](C& c) {
       c.overlap_moe_expert_parallel_comm = true;
       c.cuda_graph_modules = {attn};
     },
     "cuda_graph_modules = [\"attn\", \"mlp\"] cannot have moe or mlp"},
    {"CF702", bridge, kEngine,
     [](C& c) {
       delayed_wgrad(c);
       c.gradient_accumulation_fusion = false;
     },
     delayed_wgrad, "delay_wgrad_compute inside a graph needs gradient_accumulation_fusion"},
    {"CF703", megatron, kEngine,
     [](C& c) {
       delayed_wgrad(c);
       c.overlap_grad_reduce = c.add_qkv_bias = true;
     },
     [](C& c) {
       delayed_wgrad(c);
       c.add_qkv_bias = true;  // Megatron-LM asks only where gradients are reduced meanwhile
     },
     "add_bias_linear = false, add_qkv_bias = true"},
    {"CF704", megatron, kNone,
     [](C& c) {
       fsdp(c, 2);
       c.megatron_fsdp_cuda_graph_mode = true;
     },
     [](C& c) {
       fsdp(c, 1);
       c.megatron_fsdp_cuda_graph_mode = true;
     },
     "supports no graphs: cuda_graph_impl = none, megatron_fsdp_cuda_graph_mode = true"},
    {"CF705", bridge, kNone,
     [](C& c) {
       fsdp(c, 2);
       c.optimizer_cuda_graph = true;
       c.capturable = true;
     },
     [](C& c) { fsdp(c, 2); }, "Megatron-FSDP 2 supports no optimizer_cuda_graph"},
    {"CF706", bridge, kEngine,
     [](C& c) {
       fsdp(c, 1);
       c.overlap_moe_expert_parallel_comm = true;
     },
     [](C& c) {
       c.cuda_graph_impl = kFull;
       fsdp(c, 1);
       c.overlap_moe_expert_parallel_comm = true;
     },
     "with use_megatron_fsdp cannot be combined with cuda_graph_impl = transformer_engine"},
    {"CF707", megatron, kEngine, [](C& c) { fsdp(c, 1); },
     [](C& c) {
       fsdp(c, 1);
       c.megatron_fsdp_cuda_graph_mode = true;
     },
     "use_megatron_fsdp with cuda_graph_impl = transformer_engine needs its mode for graphs"},
    {"CF708", megatron, kFull,
     [](C& c) {
       fsdp(c, 1);
       c.megatron_fsdp_cuda_graph_mode = true;
     },
     [](C& c) {
       fsdp(c, 1);
       c.megatron_fsdp_cuda_graph_mode = true;
       c.fsdp_all_gather_in_start_param_sync = false;
     },
     "parameters cannot be gathered in the optimizer's step with cuda_graph_impl = full_iteration"},
    {"CF709", megatron, kFull, [](C& c) { c.hybrid_context_parallel = true; },
     [](C& c) { c.cuda_graph_impl = kNone, c.hybrid_context_parallel = true; },
     "hybrid_context_parallel cannot be combined with cuda_graph_impl = full_iteration"},

    {"CF801", megatron, kEngine, growing, [](C& c) { growing(c), c.nccl_graph_register = 0; },
     "needs NCCL_GRAPH_REGISTER=0, and it is unset"},
    {"CF802", megatron, kLocal,
     [](C& c) {
       growing(c);
       c.compute_capability = 9.0;
       c.nccl_graph_register = 1;
     },
     [](C& c) {
       growing(c);
       c.compute_capability = 10.0;
       c.nccl_graph_register = 1;
     },
     "needs NCCL_GRAPH_REGISTER=0 on these GPUs (compute_capability = 9), and it is 1"},
    {"CF803", pianola, kFull, growing, [](C& c) { c.pytorch_cuda_alloc_conf = "expandable_segments:False"; },
     "goes with collectives in graphs only where NCCL_GRAPH_REGISTER=0, and it is unset"},
    {"CF804", megatron, kLocal,
     [](C& c) {
       c.gtp_weight_remat_size = 2;
       c.compute_capability = 10.0;
     },
     [](C& c) {
       c.gtp_weight_remat_size = 2;
       c.compute_capability = 10.0;
       c.cuda_graphs_use_node_priority = 1;
     },
     "needs CUDA_GRAPHS_USE_NODE_PRIORITY=1 on compute capability 10, and it is unset"},
    {"CF805", pianola, kFull, [](C& c) { engine_loss(c), c.te_version = "2.6.1"; },
     [](C& c) { engine_loss(c), c.te_version = "2.7"; }, "needs Transformer Engine 2.7.0, and te_version = 2.6.1"},
    {"CF806", megatron, kEngine,
     [](C& c) {
       delayed_wgrad(c);
       c.te_version = "2.9.9";
     },
     [](C& c) {
       delayed_wgrad(c);
       c.te_version = "2.10.0";
     },
     "needs Transformer Engine 2.10.0, and te_version = 2.9.9"},
    {"CF807", bridge, kEngine,
     [](C& c) {
       delayed_wgrad(c);
       c.te_version = "2.11.0+cuda13";
     },
     [](C& c) {
       delayed_wgrad(c);
       c.te_version = "2.12.0.dev0";
     },
     "needs Transformer Engine 2.12.0, and te_version = 2.11.0+cuda13"},
    {"CF808", megatron, kEngine,
     [](C& c) {
       c.cuda_graph_modules = {attn};
       offload(c, "core_attn");
       c.te_version = "2.13";
     },
     [](C& c) {
       c.cuda_graph_modules = {attn};
       offload(c, "moe_act");
       c.te_version = "2.13";
     },
     "offloading [\"core_attn\"] inside a graph needs Transformer Engine 2.14.0, and te_version = 2.13"},
    {"CF809", megatron, kEngine,
     [](C& c) {
       c.cuda_graph_modules = {mlp};
       offload(c, "mlp_norm");
       c.torch_version = "2.8.0";
     },
     [](C& c) {
       c.cuda_graph_modules = {mlp};
       offload(c, "mlp_norm");
       c.torch_version = "2.9.0a0";
     },
     "offloading [\"mlp_norm\"] inside a graph needs PyTorch 2.9.0, and torch_version = 2.8.0"},

    {"CF901", megatron, kEngine, [](C& c) { c.inference_cuda_graph_scope = InferenceGraphScope::block; },
     [](C& c) { c.inference_cuda_graph_scope = InferenceGraphScope::none; },
     "inference_cuda_graph_scope = block does not go with cuda_graph_impl = transformer_engine"},
    {"CF902", megatron, kLocal,
     [](C& c) {
       fp8_blocks(c);
       c.transformer_impl = TransformerImpl::transformer_engine;
     },
     fp8_blocks, "needs transformer_impl = inference_optimized, got transformer_engine"},
    {"CF903", megatron, kLocal,
     [](C& c) {
       fp8_blocks(c);
       c.fp8_recipe = "delayed";
     },
     fp8_blocks, "needs fp8_recipe = mxfp8, got delayed"},
    {"CF904", megatron, kLocal, [](C& c) { c.inference_dynamic_batching_num_cuda_graphs = 0; },
     [](C& c) { c.inference_dynamic_batching_num_cuda_graphs = -1; }, "must be 1 or more, or -1, got 0"},
    {"CF905", megatron, kLocal, [](C& c) { c.inference_batch_times_seqlen_threshold = 512; },
     [](C& c) { c.cuda_graph_impl = kNone, c.inference_batch_times_seqlen_threshold = 512; },
     "inference_batch_times_seqlen_threshold = 512 cannot be combined with cuda_graph_impl = local"},
    {"CF906", megatron, kNone, [](C& c) { c.rl_training_cuda_graphs = true; },
     [](C& c) { c.cuda_graph_impl = kLocal, c.rl_training_cuda_graphs = true; },
     "rl_training_cuda_graphs needs graphs, and cuda_graph_impl = none"},
    {"CF907", megatron, kNone, [](C& c) { c.rl_persist_cuda_graphs = true; },
     [](C& c) { c.cuda_graph_impl = kLocal, c.rl_persist_cuda_graphs = true; },
     "rl_persist_cuda_graphs needs graphs, and cuda_graph_impl = none"},
    {"CF908", pianola, kFull, [](C& c) { c.inference_cuda_graph_scope = InferenceGraphScope::block; },
     [](C& c) { c.inference_cuda_graph_scope = InferenceGraphScope::none; },
     "inference_cuda_graph_scope = block has no effect in Pianola"},
};

// Errors that come with another one: what is wrong by both is wrong twice.
const std::set<std::pair<std::string, std::string>> kTogether = {
    {"CF511", "CF105"},  // no warm-up step is a warning for all, and an error with offloading
};

class ConfigRuleTest : public ::testing::TestWithParam<Case> {};

TEST_P(ConfigRuleTest, IsFoundByItselfWithItsMessage) {
  const ConfigReport report = check_config(GetParam().made(GetParam().wrong));
  bool found = false;
  for (const ConfigFinding& finding : report.findings) {
    if (finding.rule->id == GetParam().id) {
      found = true;
      EXPECT_THAT(finding.message, HasSubstr(GetParam().message));
    } else {
      EXPECT_TRUE(kTogether.contains({GetParam().id, std::string(finding.rule->id)})) << report.to_text();
    }
  }
  EXPECT_TRUE(found) << report.to_text();
}

TEST_P(ConfigRuleTest, IsNotFoundInWhatIsNearlyTheSame) {
  EXPECT_THAT(ids_of(check_config(GetParam().made(GetParam().near))), ::testing::IsEmpty());
}

TEST_P(ConfigRuleTest, IsNoneOfOtherTargets) {
  const ConfigRule& rule = config_rule(GetParam().id);
  for (const ConfigTarget other : {pianola, megatron, bridge}) {
    if (rule.targets.contains(other)) continue;
    C config = GetParam().made(GetParam().wrong);
    config.target = other;
    EXPECT_THAT(ids_of(check_config(config)), ::testing::Not(::testing::Contains(GetParam().id))) << in_words(other);
  }
}

TEST_P(ConfigRuleTest, AFixLeavesNothingOfItBehindAndAnErrorStays) {
  const ConfigRule& rule = config_rule(GetParam().id);
  const C config = GetParam().made(GetParam().wrong);
  const ConfigReport report = check_config(config);
  EXPECT_EQ(rule.fix != nullptr, rule.outcome == ConfigOutcome::fixed);
  EXPECT_EQ(report.ok(), rule.outcome != ConfigOutcome::error);
  EXPECT_EQ(report.config == config, rule.fix == nullptr);
  EXPECT_EQ(rule.violated(report.config), rule.fix == nullptr);
}

std::string id_of(const ::testing::TestParamInfo<Case>& one) { return one.param.id; }
INSTANTIATE_TEST_SUITE_P(Rules, ConfigRuleTest, ::testing::ValuesIn(kCases), id_of);

TEST(ConfigRulesTest, EveryRuleHasACase) {
  std::set<std::string_view> shown;
  for (const Case& one : kCases) EXPECT_TRUE(shown.insert(one.id).second) << one.id;
  for (const ConfigRule& rule : config_rules()) EXPECT_TRUE(shown.contains(rule.id)) << rule.id;
  EXPECT_EQ(shown.size(), config_rules().size());
}

TEST(ConfigRulesTest, IdsAreUniqueAndInOrder) {
  int last = 0;
  for (const ConfigRule& rule : config_rules()) {
    ASSERT_TRUE(rule.id.starts_with("CF")) << rule.id;
    const int number = std::atoi(std::string(rule.id.substr(2)).c_str());
    EXPECT_GT(number, last) << rule.id;
    last = number;
  }
}

TEST(ConfigRulesTest, EveryRuleSaysWhatWhyAndWhatToDo) {
  for (const ConfigRule& rule : config_rules()) {
    for (const std::string_view text : {rule.title, rule.message, rule.advice, rule.reason}) {
      EXPECT_FALSE(text.empty()) << rule.id;
      EXPECT_FALSE(text.ends_with('.')) << rule.id << ": " << text;
    }
  }
}

TEST(ConfigRulesTest, MessagesNameFieldsThatThereAre) {
  for (const ConfigRule& rule : config_rules()) {
    for (std::size_t open = rule.message.find('{'); open != std::string_view::npos;
         open = rule.message.find('{', open + 1)) {
      const std::size_t close = rule.message.find('}', open);
      ASSERT_NE(close, std::string_view::npos) << rule.id;
      EXPECT_NE(find_config_field(rule.message.substr(open + 1, close - open - 1)), nullptr) << rule.id;
    }
  }
}

TEST(ConfigRulesTest, ARuleIsReadByItsId) {
  EXPECT_EQ(config_rule("CF102").outcome, ConfigOutcome::error);
  EXPECT_EQ(describe(config_rule("CF104")),
            "CF104 (error): the number of warm-up steps is negative\n"
            "  says:    cuda_graph_warmup_steps must be 0 or more, got {cuda_graph_warmup_steps}\n"
            "  to do:   set it to 3\n"
            "  why:     it is how many eager steps come before the capture\n"
            "  targets: pianola, megatron, bridge\n");
}

TEST(ConfigRulesTest, AnUnknownIdIsRefused) {
  EXPECT_THAT([] { (void)config_rule("CF1"); },
              ThrowsMessage<UsageError>(HasSubstr("there is no configuration rule 'CF1'")));
}

TEST(ConfigRulesTest, TheDefaultConfigurationIsValidForEveryTarget) {
  for (const ConfigTarget target : {pianola, megatron, bridge}) {
    EXPECT_THAT(ids_of(check_config({.target = target})), ::testing::IsEmpty()) << in_words(target);
  }
}

}  // namespace
}  // namespace pianola::rule_test

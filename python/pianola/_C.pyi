"""Pianola's C++ library. The package `pianola` is its public face."""
# Made by tools/stub.py from the bindings: do not edit.

from os import PathLike
from types import CodeType, FrameType
from typing import Any, Callable, ClassVar, Mapping, NoReturn, Sequence, overload

import torch
from typing_extensions import Self

class Error(RuntimeError):
    """Base of all errors of Pianola. `what`, `where` and `fix` are the parts of its text: what happened, the
    operation and line (may be empty), and what to do (may be empty). `rule` is the id of the hazard rule that it
    is a case of ('PG101'; may be empty)."""

    what: str
    where: str
    fix: str
    rule: str

class UsageError(Error):
    """The caller broke a documented rule."""

class CaptureError(Error):
    """A capture failed; nothing of it is kept."""

class ReplayError(Error):
    """A replay was refused, or could not be launched."""

class GuardError(Error):
    """The inputs or modes of a call differ from those that were captured."""

class ScheduleError(Error):
    """A pipeline schedule is malformed, or was not followed."""

class ConfigError(Error):
    """Options or a configuration contradict each other."""

class NonFiniteError(Error):
    """A checked tensor held NaN or infinity; training has to stop."""

class UnsupportedError(Error):
    """The request is sound, but this build or backend cannot serve it."""

class CommunicationError(Error):
    """A replay communicated with other ranks, and one of them did something else, or has ended. Unlike ReplayError:
    the replay has begun, and nothing is tried again."""

class DeviceError(Error):
    """No such device, no driver, or a CUDA call failed outside a capture."""

class OutOfMemoryError(CaptureError, torch.OutOfMemoryError):
    """The device ran out of memory while a capture recorded."""

def raise_error(name: str, what: str, where: str = '', fix: str = '', rule: str = '') -> NoReturn:
    """Raises the error of that class name, in the form that all of them have."""

def explain_wrong_arguments(explain: Callable[[str, tuple[Any, ...], dict[str, Any]], str]) -> None:
    """From now on, TypeErrors about arguments of this module's functions have the text that `explain` returns."""

class CudaGraphConfig:
    """Everything of a training configuration that bears on CUDA graphs, under the names that Megatron-LM gives it.

    Values that cannot be used raise ConfigError.
    """

    def __init__(self, **kwargs: Any) -> None: ...
    def __repr__(self) -> str: ...
    def __eq__(self, other: object) -> bool: ...
    def __copy__(self) -> CudaGraphConfig: ...
    def __deepcopy__(self, memo: dict[Any, Any]) -> CudaGraphConfig: ...
    @property
    def target(self) -> str:
        """Whose graphs the configuration is for."""
    @target.setter
    def target(self, value: str) -> None: ...
    @property
    def cuda_graph_impl(self) -> str:
        """What makes the graphs; per_layer, callables and iteration are other names of local, transformer_engine and
        full_iteration."""
    @cuda_graph_impl.setter
    def cuda_graph_impl(self, value: str) -> None: ...
    @property
    def cuda_graph_modules(self) -> list[str]:
        """Parts of a layer that per-layer graphs capture; none: whole layers."""
    @cuda_graph_modules.setter
    def cuda_graph_modules(self, value: str | Sequence[str]) -> None: ...
    @property
    def cuda_graph_warmup_steps(self) -> int:
        """Eager steps before the capture."""
    @cuda_graph_warmup_steps.setter
    def cuda_graph_warmup_steps(self, value: int) -> None: ...
    @property
    def cuda_graph_use_single_mempool(self) -> bool:
        """Training, evaluation and optimizer graphs share a memory pool."""
    @cuda_graph_use_single_mempool.setter
    def cuda_graph_use_single_mempool(self, value: bool) -> None: ...
    @property
    def cuda_graph_retain_backward_graph(self) -> bool:
        """Backward passes of per-layer graphs are captured with retain_graph."""
    @cuda_graph_retain_backward_graph.setter
    def cuda_graph_retain_backward_graph(self, value: bool) -> None: ...
    @property
    def use_te_rng_tracker(self) -> bool | None:
        """The layers' random streams are kept in states that a graph can register."""
    @use_te_rng_tracker.setter
    def use_te_rng_tracker(self, value: bool | None) -> None: ...
    @property
    def te_rng_tracker(self) -> bool | None:
        """The same, of the tracker that the training sets up."""
    @te_rng_tracker.setter
    def te_rng_tracker(self, value: bool | None) -> None: ...
    @property
    def check_for_nan_in_loss(self) -> bool | None:
        """Each step looks at the loss."""
    @check_for_nan_in_loss.setter
    def check_for_nan_in_loss(self, value: bool | None) -> None: ...
    @property
    def check_for_nan_in_grad(self) -> bool | None:
        """Each step looks at the gradients."""
    @check_for_nan_in_grad.setter
    def check_for_nan_in_grad(self, value: bool | None) -> None: ...
    @property
    def optimizer_cuda_graph(self) -> bool:
        """The optimizer's step is captured."""
    @optimizer_cuda_graph.setter
    def optimizer_cuda_graph(self, value: bool) -> None: ...
    @property
    def capturable(self) -> bool | None:
        """Step counts and learning rates of the optimizer are on the device."""
    @capturable.setter
    def capturable(self, value: bool | None) -> None: ...
    @property
    def log_num_zeros_in_grad(self) -> bool:
        """Zeros in the gradients are counted in each step."""
    @log_num_zeros_in_grad.setter
    def log_num_zeros_in_grad(self, value: bool) -> None: ...
    @property
    def pipeline_model_parallel_size(self) -> int:
        """Stages of the pipeline."""
    @pipeline_model_parallel_size.setter
    def pipeline_model_parallel_size(self, value: int) -> None: ...
    @property
    def gtp_weight_remat_size(self) -> int:
        """Ranks that each weight is gathered from (GTP)."""
    @gtp_weight_remat_size.setter
    def gtp_weight_remat_size(self, value: int) -> None: ...
    @property
    def hybrid_context_parallel(self) -> bool:
        """The number of ranks that share a sequence follows its length."""
    @hybrid_context_parallel.setter
    def hybrid_context_parallel(self, value: bool) -> None: ...
    @property
    def transformer_impl(self) -> str:
        """Which kernels layers are made of."""
    @transformer_impl.setter
    def transformer_impl(self, value: str) -> None: ...
    @property
    def use_transformer_engine_full_layer_spec(self) -> bool:
        """Whole layers of Transformer Engine under its autocast."""
    @use_transformer_engine_full_layer_spec.setter
    def use_transformer_engine_full_layer_spec(self, value: bool) -> None: ...
    @property
    def fp8(self) -> str | None:
        """Format of FP8 training."""
    @fp8.setter
    def fp8(self, value: str | None) -> None: ...
    @property
    def fp8_recipe(self) -> str | None:
        """How FP8 scales are found: delayed, tensorwise, blockwise, mxfp8."""
    @fp8_recipe.setter
    def fp8_recipe(self, value: str | None) -> None: ...
    @property
    def fp8_margin(self) -> int:
        """Delayed scales are 2^margin smaller."""
    @fp8_margin.setter
    def fp8_margin(self, value: int) -> None: ...
    @property
    def fp8_amax_history_len(self) -> int:
        """Steps whose largest magnitudes delayed scales come from."""
    @fp8_amax_history_len.setter
    def fp8_amax_history_len(self, value: int) -> None: ...
    @property
    def fp8_amax_compute_algo(self) -> str:
        """Which of them: max or most_recent."""
    @fp8_amax_compute_algo.setter
    def fp8_amax_compute_algo(self, value: str) -> None: ...
    @property
    def fp8_wgrad(self) -> bool:
        """Weight gradients are FP8 products, too."""
    @fp8_wgrad.setter
    def fp8_wgrad(self, value: bool) -> None: ...
    @property
    def fp8_param(self) -> bool:
        """Weights are kept in FP8."""
    @fp8_param.setter
    def fp8_param(self, value: bool) -> None: ...
    @property
    def fp8_dot_product_attention(self) -> bool:
        """Attention multiplies in FP8."""
    @fp8_dot_product_attention.setter
    def fp8_dot_product_attention(self, value: bool) -> None: ...
    @property
    def fp8_multi_head_attention(self) -> bool:
        """Attention takes and gives FP8."""
    @fp8_multi_head_attention.setter
    def fp8_multi_head_attention(self, value: bool) -> None: ...
    @property
    def first_last_layers_bf16(self) -> bool:
        """The first and last layers stay out of FP8."""
    @first_last_layers_bf16.setter
    def first_last_layers_bf16(self, value: bool) -> None: ...
    @property
    def num_layers_at_start_in_bf16(self) -> int:
        """How many at the start."""
    @num_layers_at_start_in_bf16.setter
    def num_layers_at_start_in_bf16(self, value: int) -> None: ...
    @property
    def num_layers_at_end_in_bf16(self) -> int:
        """How many at the end."""
    @num_layers_at_end_in_bf16.setter
    def num_layers_at_end_in_bf16(self, value: int) -> None: ...
    @property
    def fp4(self) -> str | None:
        """Format of FP4 training."""
    @fp4.setter
    def fp4(self, value: str | None) -> None: ...
    @property
    def cross_entropy_loss_fusion(self) -> bool:
        """The loss is one kernel."""
    @cross_entropy_loss_fusion.setter
    def cross_entropy_loss_fusion(self, value: bool) -> None: ...
    @property
    def cross_entropy_fusion_impl(self) -> str:
        """Whose kernel the loss is: native or te."""
    @cross_entropy_fusion_impl.setter
    def cross_entropy_fusion_impl(self, value: str) -> None: ...
    @property
    def attention_dropout(self) -> float | None:
        """Probability; unset: 0.1 in Megatron-LM, 0 here."""
    @attention_dropout.setter
    def attention_dropout(self, value: float | None) -> None: ...
    @property
    def hidden_dropout(self) -> float | None:
        """Probability; unset: 0.1 in Megatron-LM, 0 here."""
    @hidden_dropout.setter
    def hidden_dropout(self, value: float | None) -> None: ...
    @property
    def recompute_granularity(self) -> str | None:
        """What the backward pass computes again."""
    @recompute_granularity.setter
    def recompute_granularity(self, value: str | None) -> None: ...
    @property
    def recompute_modules(self) -> list[str]:
        """What selective recomputation computes again; none: core_attn."""
    @recompute_modules.setter
    def recompute_modules(self, value: str | Sequence[str]) -> None: ...
    @property
    def cpu_offloading(self) -> bool:
        """Activations of whole layers wait in the memory of the host."""
    @cpu_offloading.setter
    def cpu_offloading(self, value: bool) -> None: ...
    @property
    def fine_grained_activation_offloading(self) -> bool:
        """Activations of offload_modules wait in the memory of the host."""
    @fine_grained_activation_offloading.setter
    def fine_grained_activation_offloading(self, value: bool) -> None: ...
    @property
    def offload_modules(self) -> list[str]:
        """Modules whose inputs are offloaded."""
    @offload_modules.setter
    def offload_modules(self, value: str | Sequence[str]) -> None: ...
    @property
    def fine_grained_offloading_max_inflight_offloads(self) -> int | None:
        """Offloads that may be on their way at once."""
    @fine_grained_offloading_max_inflight_offloads.setter
    def fine_grained_offloading_max_inflight_offloads(self, value: int | None) -> None: ...
    @property
    def num_moe_experts(self) -> int | None:
        """Experts; unset or 1: there are none."""
    @num_moe_experts.setter
    def num_moe_experts(self, value: int | None) -> None: ...
    @property
    def moe_layer_freq(self) -> list[int]:
        """One number N: each Nth layer has experts; a list: 1 or 0 for each layer."""
    @moe_layer_freq.setter
    def moe_layer_freq(self, value: int | Sequence[int]) -> None: ...
    @property
    def moe_expert_capacity_factor(self) -> float | None:
        """Tokens that an expert takes, relative to an even share; unset: all."""
    @moe_expert_capacity_factor.setter
    def moe_expert_capacity_factor(self, value: float | None) -> None: ...
    @property
    def moe_pad_expert_input_to_capacity(self) -> bool:
        """Each expert's input is padded to its capacity."""
    @moe_pad_expert_input_to_capacity.setter
    def moe_pad_expert_input_to_capacity(self, value: bool) -> None: ...
    @property
    def moe_token_dispatcher_type(self) -> str:
        """How tokens travel to their experts."""
    @moe_token_dispatcher_type.setter
    def moe_token_dispatcher_type(self, value: str) -> None: ...
    @property
    def moe_flex_dispatcher_backend(self) -> str | None:
        """What the flex dispatcher runs on: deepep, hybridep, ncclep."""
    @moe_flex_dispatcher_backend.setter
    def moe_flex_dispatcher_backend(self, value: str | None) -> None: ...
    @property
    def moe_hybridep_pad_uneven_dispatch_inputs(self) -> bool:
        """HybridEP pads what ranks send to the same length."""
    @moe_hybridep_pad_uneven_dispatch_inputs.setter
    def moe_hybridep_pad_uneven_dispatch_inputs(self, value: bool) -> None: ...
    @property
    def moe_router_padding_for_fp8(self) -> bool:
        """The router pads each expert's tokens for FP8."""
    @moe_router_padding_for_fp8.setter
    def moe_router_padding_for_fp8(self, value: bool) -> None: ...
    @property
    def moe_input_jitter_eps(self) -> float | None:
        """Noise on the experts' inputs."""
    @moe_input_jitter_eps.setter
    def moe_input_jitter_eps(self, value: float | None) -> None: ...
    @property
    def moe_shared_expert_intermediate_size(self) -> int | None:
        """Size of the shared experts; unset: there are none."""
    @moe_shared_expert_intermediate_size.setter
    def moe_shared_expert_intermediate_size(self, value: int | None) -> None: ...
    @property
    def moe_shared_expert_overlap(self) -> bool:
        """Shared experts run while tokens travel."""
    @moe_shared_expert_overlap.setter
    def moe_shared_expert_overlap(self, value: bool) -> None: ...
    @property
    def overlap_moe_expert_parallel_comm(self) -> bool:
        """Tokens of one microbatch travel while another one is computed."""
    @overlap_moe_expert_parallel_comm.setter
    def overlap_moe_expert_parallel_comm(self, value: bool) -> None: ...
    @property
    def delay_wgrad_compute(self) -> bool:
        """Weight gradients are computed after the gradients of activations."""
    @delay_wgrad_compute.setter
    def delay_wgrad_compute(self, value: bool) -> None: ...
    @property
    def gradient_accumulation_fusion(self) -> bool:
        """Weight gradients are added to main_grad by the product itself."""
    @gradient_accumulation_fusion.setter
    def gradient_accumulation_fusion(self, value: bool) -> None: ...
    @property
    def add_bias_linear(self) -> bool:
        """Linear layers have a bias."""
    @add_bias_linear.setter
    def add_bias_linear(self, value: bool) -> None: ...
    @property
    def add_qkv_bias(self) -> bool:
        """The projections of queries, keys and values have one."""
    @add_qkv_bias.setter
    def add_qkv_bias(self, value: bool) -> None: ...
    @property
    def overlap_grad_reduce(self) -> bool:
        """Gradients are reduced while the backward pass goes on."""
    @overlap_grad_reduce.setter
    def overlap_grad_reduce(self, value: bool) -> None: ...
    @property
    def use_megatron_fsdp(self) -> bool:
        """Parameters are sharded by Megatron-FSDP."""
    @use_megatron_fsdp.setter
    def use_megatron_fsdp(self, value: bool) -> None: ...
    @property
    def megatron_fsdp_version(self) -> int:
        """1 or 2."""
    @megatron_fsdp_version.setter
    def megatron_fsdp_version(self, value: int) -> None: ...
    @property
    def megatron_fsdp_cuda_graph_mode(self) -> bool:
        """Megatron-FSDP keeps off what graphs cannot do."""
    @megatron_fsdp_cuda_graph_mode.setter
    def megatron_fsdp_cuda_graph_mode(self, value: bool) -> None: ...
    @property
    def fsdp_all_gather_in_start_param_sync(self) -> bool | None:
        """Megatron-FSDP gathers parameters in the optimizer's step."""
    @fsdp_all_gather_in_start_param_sync.setter
    def fsdp_all_gather_in_start_param_sync(self, value: bool | None) -> None: ...
    @property
    def variable_seq_lengths(self) -> bool:
        """Sequence lengths change between microbatches."""
    @variable_seq_lengths.setter
    def variable_seq_lengths(self, value: bool) -> None: ...
    @property
    def rampup_batch_size(self) -> list[int]:
        """Start, increment and samples of a growing batch; none: it does not grow."""
    @rampup_batch_size.setter
    def rampup_batch_size(self, value: int | Sequence[int]) -> None: ...
    @property
    def enable_offline_packing(self) -> bool:
        """Sequences were packed before the training."""
    @enable_offline_packing.setter
    def enable_offline_packing(self, value: bool) -> None: ...
    @property
    def pad_to_max_length(self) -> bool:
        """Each sequence is padded to the same length."""
    @pad_to_max_length.setter
    def pad_to_max_length(self, value: bool) -> None: ...
    @property
    def pad_cu_seqlens(self) -> bool:
        """The list of boundaries in a packed sequence is padded to the same length."""
    @pad_cu_seqlens.setter
    def pad_cu_seqlens(self, value: bool) -> None: ...
    @property
    def packing_buffer_size(self) -> int | None:
        """Samples that Energon packs from while it loads; unset: it does not pack."""
    @packing_buffer_size.setter
    def packing_buffer_size(self, value: int | None) -> None: ...
    @property
    def vision_cuda_graph_impl(self) -> str:
        """What makes the graphs of the vision encoder."""
    @vision_cuda_graph_impl.setter
    def vision_cuda_graph_impl(self, value: str) -> None: ...
    @property
    def max_vision_cuda_graph_seq_length(self) -> int | None:
        """Longest sequence that the vision encoder's graphs take."""
    @max_vision_cuda_graph_seq_length.setter
    def max_vision_cuda_graph_seq_length(self, value: int | None) -> None: ...
    @property
    def vision_seq_length(self) -> int | None:
        """Longest sequence that the data gives to the vision encoder."""
    @vision_seq_length.setter
    def vision_seq_length(self, value: int | None) -> None: ...
    @property
    def inference_cuda_graph_scope(self) -> str | None:
        """What inference captures; unset: layer with local, else none."""
    @inference_cuda_graph_scope.setter
    def inference_cuda_graph_scope(self, value: str | None) -> None: ...
    @property
    def inference_dynamic_batching_num_cuda_graphs(self) -> int:
        """Graphs for batches of different sizes; -1: as needed."""
    @inference_dynamic_batching_num_cuda_graphs.setter
    def inference_dynamic_batching_num_cuda_graphs(self, value: int) -> None: ...
    @property
    def inference_batch_times_seqlen_threshold(self) -> int:
        """Inference is pipelined above this size; -1: never."""
    @inference_batch_times_seqlen_threshold.setter
    def inference_batch_times_seqlen_threshold(self, value: int) -> None: ...
    @property
    def rl_training_cuda_graphs(self) -> bool:
        """The training phase of reinforcement learning is captured."""
    @rl_training_cuda_graphs.setter
    def rl_training_cuda_graphs(self, value: bool) -> None: ...
    @property
    def rl_persist_cuda_graphs(self) -> bool:
        """Graphs of inference stay alive while reinforcement learning trains."""
    @rl_persist_cuda_graphs.setter
    def rl_persist_cuda_graphs(self, value: bool) -> None: ...
    @property
    def te_version(self) -> str | None:
        """Version of Transformer Engine: "2.12.0"."""
    @te_version.setter
    def te_version(self, value: str | None) -> None: ...
    @property
    def torch_version(self) -> str | None:
        """Version of PyTorch: "2.11.0"."""
    @torch_version.setter
    def torch_version(self, value: str | None) -> None: ...
    @property
    def compute_capability(self) -> float | None:
        """Of the GPUs: 9.0, 10.0."""
    @compute_capability.setter
    def compute_capability(self, value: float | None) -> None: ...
    @property
    def pytorch_cuda_alloc_conf(self) -> str | None:
        """Options of PyTorch's allocator."""
    @pytorch_cuda_alloc_conf.setter
    def pytorch_cuda_alloc_conf(self, value: str | None) -> None: ...
    @property
    def nccl_graph_register(self) -> int | None:
        """Whether NCCL registers buffers that a graph uses: 0 or 1."""
    @nccl_graph_register.setter
    def nccl_graph_register(self, value: int | None) -> None: ...
    @property
    def cuda_graphs_use_node_priority(self) -> int | None:
        """Whether graphs keep the priorities of streams: 0 or 1."""
    @cuda_graphs_use_node_priority.setter
    def cuda_graphs_use_node_priority(self, value: int | None) -> None: ...

class ConfigChange:
    """A setting that a rule has changed, its values as in a file."""

    @property
    def key(self) -> str:
        """"model.cuda_graph_impl\""""
    @property
    def before(self) -> str:
        """The value as in a file."""
    @property
    def after(self) -> str:
        """The value as in a file."""

class ConfigFinding:
    """A rule that a configuration violates."""

    @property
    def rule(self) -> str:
        """"CF302"; config_rules() has them all."""
    @property
    def outcome(self) -> str:
        """"error", "fixed" or "warning"."""
    @property
    def message(self) -> str:
        """What is wrong."""
    @property
    def advice(self) -> str:
        """What to do."""
    @property
    def reason(self) -> str:
        """Why it does not work."""
    @property
    def changes(self) -> list[ConfigChange]:
        """Settings that were changed to fix it."""

class ConfigReport:
    """What check_config() found."""

    @property
    def config(self) -> CudaGraphConfig:
        """With all that could be fixed."""
    @property
    def findings(self) -> list[ConfigFinding]:
        """Errors, fixes and warnings, in the order of the rules."""
    @property
    def ok(self) -> bool:
        """There is no error."""
    @property
    def exit_code(self) -> int:
        """0, or 3 where there are errors."""
    def to_text(self) -> str:
        """For people."""
    def to_json(self, indent: int = 2) -> str:
        """One JSON object."""
    def __str__(self) -> str: ...

def check_config(config: CudaGraphConfig) -> ConfigReport:
    """Applies the rules: everything that is wrong at once, and what could be fixed."""

def require_valid(config: CudaGraphConfig) -> None:
    """Raises a ConfigError that names every error of check_config()."""

def with_environment(config: CudaGraphConfig) -> CudaGraphConfig:
    """What the configuration does not say filled in from the environment: NCCL_GRAPH_REGISTER, ..."""

def load_config(path: str | PathLike[str], *, allow_other_keys: bool = False) -> CudaGraphConfig:
    """Reads a JSON or YAML file. Raises ConfigError, all at once, of unknown keys, wrong types and contradictions."""

def config_rules() -> list[dict[str, Any]]:
    """All rules: id, outcome, title, message, advice, reason, targets."""

class Report:
    """What the library has to tell: text for people, JSON for programs."""

    def __init__(self, title: str) -> None: ...
    def fact(self, key: str, label: str, value: Any, unit: str = '') -> Report:
        """Adds a value with a name."""
    def list(self, key: str, label: str, items: Sequence[str]) -> Report:
        """Adds sentences."""
    def table(
        self,
        key: str,
        title: str,
        columns: Sequence[tuple[str, str, str, int]],
        rows: Sequence[Sequence[Any]],
    ) -> Report:
        """Adds a table; a column is (key, label, unit, decimals)."""
    def to_text(self, width: int = 100) -> str:
        """Facts and tables, for people."""
    def to_json(self, indent: int = 2) -> str:
        """The same, for programs."""
    def __str__(self) -> str: ...

class ParallelOptions:
    """How the option `branches` goes about its work. The defaults suit most steps."""

    def __init__(
        self,
        *,
        workspaces: int = 0,
        reuse_delay: int = 16,
        split_kernels: bool = False,
        memory_limit: int = 1073741824,
        self_check: bool = True,
        warmed_up: bool = False,
    ) -> None: ...
    @property
    def workspaces(self) -> int:
        """cuBLAS workspaces that matrix products take in turn, so that they need not wait for each other's. 0: as many
        as branches. 1: one for all, as torch has it."""
    @property
    def reuse_delay(self) -> int:
        """For so many operations, and four times as many once the step has run backward, memory that the step frees is
        not used again: reuse orders what is independent. 0: torch's own reuse."""
    @property
    def split_kernels(self) -> bool:
        """Split every operation of several kernels, not only those that work on lists of tensors."""
    @property
    def memory_limit(self) -> int:
        """Most bytes that workspaces and delayed reuse may take together."""
    @property
    def self_check(self) -> bool:
        """Time both graphs at the end of the capture, and keep the one as captured unless the rebuilt one is at least 2
        % faster."""
    @property
    def warmed_up(self) -> bool:
        """The step has run before, on what its inputs hold now: a capture without warm-up may be tried, too."""
    def __repr__(self) -> str: ...

class BranchObstacle:
    """One reason why work could not run at once, summed over one operator."""

    @property
    def cause(self) -> str:
        """"reuse of memory", "workspace" or "barrier"."""
    @property
    def op(self) -> str:
        """The operator that had to wait: "aten::mm"."""
    @property
    def dependencies(self) -> int:
        """How many dependencies of that cause it has."""

class BranchInfo:
    """What the option `branches` came to. Times that are called modelled come from a model of the device, not from
    a clock."""

    @property
    def branches(self) -> int:
        """Lanes that were asked for, at most 8."""
    @property
    def automatic(self) -> bool:
        """Asked for by branches="auto"."""
    @property
    def rebuilt(self) -> bool:
        """Replays run the rebuilt graph."""
    @property
    def reason(self) -> str:
        """Why replays run the graph as captured; empty where they do not."""
    @property
    def nodes(self) -> int:
        """Nodes of the graph; on the tape, operations."""
    @property
    def units(self) -> int:
        """Pieces that are ordered as a whole: operations, or kernels of split ones."""
    @property
    def edges_before(self) -> int:
        """Of the graph as captured."""
    @property
    def edges_after(self) -> int:
        """Of the rebuilt graph, lanes included."""
    @property
    def lanes(self) -> int:
        """That the schedule uses, with one for collectives."""
    @property
    def proved_pairs(self) -> int:
        """Pairs of units that touch the same bytes, one of them writing: all are ordered."""
    @property
    def critical_nodes(self) -> int:
        """Nodes on the longest path."""
    @property
    def modelled_serial_us(self) -> float:
        """All nodes one after the other, collectives beside them."""
    @property
    def modelled_rebuilt_us(self) -> float:
        """On the lanes."""
    @property
    def modelled_critical_us(self) -> float:
        """The longest path."""
    @property
    def without_reuse_us(self) -> float:
        """The longest path, modelled, if no memory was used again."""
    @property
    def without_workspaces_us(self) -> float:
        """The longest path, modelled, if no workspace was shared."""
    @property
    def without_barriers_us(self) -> float:
        """The longest path, modelled, without barriers."""
    @property
    def untimed(self) -> str:
        """Why a rebuilt graph was taken without timing it; empty for others."""
    @property
    def serial_us(self) -> float:
        """A replay of the graph as captured, on the device; 0: not timed."""
    @property
    def rebuilt_us(self) -> float:
        """A replay of the rebuilt graph; 0: not timed."""
    @property
    def floor_us(self) -> float:
        """The longest path alone: its modelled share of serial_us; 0: not timed."""
    @property
    def workspace_bytes(self) -> int:
        """Of the pool's workspaces for branches."""
    @property
    def held_bytes(self) -> int:
        """Most bytes that were kept from reuse at any time of the capture."""
    @property
    def plan_us(self) -> int:
        """Host time of planning and proof, in microseconds."""
    @property
    def rebuild_us(self) -> int:
        """Host time of making the rebuilt graph, in microseconds."""
    @property
    def trial_us(self) -> int:
        """Host time of timing both graphs, in microseconds."""
    @property
    def obstacles(self) -> list[BranchObstacle]:
        """What held it back, the most frequent first."""
    @property
    def warnings(self) -> list[str]:
        """What is sound but may surprise, one sentence each."""
    def report(self) -> Report:
        """All of it."""
    def __str__(self) -> str: ...

class MemoryUser:
    """What one line of a step has in use where most is."""

    @property
    def place(self) -> str:
        """The operation, and the line that called it."""
    @property
    def blocks(self) -> int:
        """How many blocks."""
    @property
    def bytes(self) -> int:
        """Their bytes."""

class MemoryForecast:
    """What a graph of a step would take, told before there is one."""

    @property
    def device(self) -> torch.device:
        """Where the step ran."""
    @property
    def operations(self) -> int:
        """Of a run."""
    @property
    def blocks(self) -> int:
        """That a run was handed out."""
    @property
    def handed_out_bytes(self) -> int:
        """Of all these blocks."""
    @property
    def bound_bytes(self) -> int:
        """The most in use at a time: no pool holds the step in less."""
    @property
    def pool_bytes(self) -> int:
        """Of a pool that torch's allocator fills."""
    @property
    def planned_bytes(self) -> int:
        """Of a pool whose blocks lie where a plan of all their lives puts them."""
    @property
    def left_bytes(self) -> int:
        """In use when the step is over."""
    @property
    def copied_bytes(self) -> int:
        """Of outside tensors that the step writes, which a capture copies aside and puts back."""
    @property
    def executable_bytes(self) -> int:
        """Of the executable graph, about."""
    @property
    def free_bytes(self) -> int | None:
        """What the driver had left for a pool; None on the CPU."""
    @property
    def cached_bytes(self) -> int:
        """What torch's allocator held unused: nothing for a pool, but for the copies."""
    @property
    def peak_place(self) -> str:
        """The operation in which most is in use."""
    @property
    def at_peak(self) -> list[MemoryUser]:
        """What is in use there by line, the largest first."""
    @property
    def fits(self) -> bool | None:
        """Whether a capture finds room; None on the CPU."""
    @property
    def verdict(self) -> str:
        """The same in a sentence."""
    def to_html(self) -> str:
        """A page that needs nothing else: who lives when, and where a plan puts it."""
    def to_text(self) -> str:
        """For people."""
    def to_json(self) -> str:
        """One JSON object."""
    def __str__(self) -> str: ...

def predict_memory(step: Callable[..., Any], *, device: torch.device, warmup: int) -> MemoryForecast:
    """Runs a step, and tells what a graph of it would take."""

class BucketForecast:
    """What graphs of a step would take, of one bucket each, that never run at once."""

    @property
    def device(self) -> torch.device:
        """Where the step ran."""
    @property
    def names(self) -> list[str]:
        """Of the buckets."""
    @property
    def buckets(self) -> list[MemoryForecast]:
        """Of each alone."""
    @property
    def pools_bytes(self) -> int:
        """Of pools of their own, all together."""
    @property
    def shared_bytes(self) -> int:
        """Of one pool for all, made with `plan_memory`."""
    @property
    def input_bytes(self) -> int:
        """Of static inputs that all graphs share: of each the largest."""
    @property
    def copied_bytes(self) -> int:
        """The most that one of the captures copies aside."""
    @property
    def executable_bytes(self) -> int:
        """Of the executable graphs, about."""
    @property
    def free_bytes(self) -> int | None:
        """What the driver had left for pools; None on the CPU."""
    @property
    def cached_bytes(self) -> int:
        """What torch's allocator held unused: nothing for pools, but for the copies."""
    @property
    def fits(self) -> bool | None:
        """Whether captures into one pool that plans find room; None on the CPU."""
    @property
    def fits_apart(self) -> bool | None:
        """Whether those into pools of their own do."""
    @property
    def verdict(self) -> str:
        """The same in a sentence."""
    def to_text(self) -> str:
        """For people."""
    def to_json(self) -> str:
        """One JSON object."""
    def __str__(self) -> str: ...

def predict_buckets(
    step: Callable[..., Any],
    names: Sequence[str],
    inputs: Sequence[Sequence[torch.Tensor]],
    *,
    device: torch.device,
    warmup: int,
) -> BucketForecast:
    """Runs a step for each bucket, and tells what graphs of it would take."""

def model_scope(name: str) -> str:
    """The user scope by which predict_scopes() knows a model."""

def layer_scope(name: str) -> str:
    """The same of a layer."""

class PredictedScope:
    """What graphs of a scope would take."""

    @property
    def name(self) -> str:
        """"each layer", "forward and backward", "iteration without optimizer", "whole iteration"."""
    @property
    def obstacle(self) -> str:
        """Why it cannot be told; empty where it can."""
    @property
    def graphs(self) -> int:
        """How many."""
    @property
    def pool_bytes(self) -> int:
        """Of pools that torch's allocator fills."""
    @property
    def scratch_bytes(self) -> int:
        """Of these, what nobody needs when the scope is over."""
    @property
    def result_bytes(self) -> int:
        """What somebody does: results, gradients."""
    @property
    def input_bytes(self) -> int:
        """Of static inputs, outside of pools."""
    @property
    def copied_bytes(self) -> int:
        """Of outside tensors that it writes, which a capture copies aside."""
    @property
    def executable_bytes(self) -> int:
        """Of the executables, about."""
    @property
    def fits(self) -> bool | None:
        """Whether captures find room; None on the CPU."""
    @property
    def verdict(self) -> str:
        """The same in a sentence."""

class LanesForecast:
    """What lanes of a graph may add at most: a bound."""

    @property
    def lanes(self) -> int:
        """How many."""
    @property
    def workspace_bytes(self) -> int:
        """Of cuBLAS; 0 on the CPU."""
    @property
    def reuse_bytes(self) -> int:
        """If nothing that the step frees were used again."""
    @property
    def at_most_bytes(self) -> int:
        """Both, but no more than the limit of `ParallelOptions`."""

class ScopeForecast:
    """A step's memory by what of it is in graphs."""

    @property
    def device(self) -> torch.device:
        """Where the step ran."""
    @property
    def scopes(self) -> list[PredictedScope]:
        """From the least in graphs to the most; always the same four."""
    @property
    def lanes(self) -> LanesForecast:
        """Of a graph of the whole iteration."""
    @property
    def free_bytes(self) -> int | None:
        """What the driver had left for pools; None on the CPU."""
    @property
    def cached_bytes(self) -> int:
        """What torch's allocator held unused: nothing for pools, but for inputs and copies."""
    def to_text(self) -> str:
        """For people."""
    def to_json(self) -> str:
        """One JSON object."""
    def __str__(self) -> str: ...

def predict_scopes(
    step: Callable[..., Any],
    inputs: Sequence[torch.Tensor],
    *,
    device: torch.device,
    warmup: int,
    lanes: int,
) -> ScopeForecast:
    """Runs a step, and tells what graphs of each scope would take."""

class ExecutableMemory:
    """What executable graphs take beside their pools."""

    @property
    def device(self) -> int:
        """Bytes of the device, as the driver counted them when they were made."""
    @property
    def host(self) -> int:
        """By how much the process grew on the host meanwhile."""

class PoolMemory:
    """What a pool has: `bytes` is `held`, `scratch` and `fragments` together."""

    @property
    def id(self) -> tuple[int, int]:
        """torch's name for it."""
    @property
    def bytes(self) -> int:
        """On the device; where it sleeps, what it will have again."""
    @property
    def held(self) -> int:
        """In blocks that somebody holds: results, gradients."""
    @property
    def scratch(self) -> int:
        """Of nobody between replays, and written by them."""
    @property
    def fragments(self) -> int:
        """No graph of the pool that has a trace ever had it."""
    @property
    def workspaces(self) -> int:
        """Of cuBLAS, for its graphs."""
    @property
    def graphs(self) -> int:
        """That share it."""
    @property
    def executables(self) -> ExecutableMemory:
        """Of these graphs."""
    @property
    def is_asleep(self) -> bool:
        """Between suspend() and resume()."""

class GraphMemory:
    """What a captured graph has of a device's memory."""

    @property
    def device(self) -> torch.device:
        """Where it lies."""
    @property
    def number(self) -> int:
        """Of `memory_of_graphs()`: of its capture in this process, from 1."""
    @property
    def pool(self) -> PoolMemory:
        """Its pool, with what other graphs have there."""
    @property
    def own_bytes(self) -> int:
        """Of the pool, that its replays write or its results lie in."""
    @property
    def shared_bytes(self) -> int:
        """Of these, that other graphs of the pool have as well."""
    @property
    def planned_bytes(self) -> int:
        """Of the pool, laid out by plans; a region that graphs share counts in full."""
    @property
    def input_bytes(self) -> int:
        """Of the tensors that replays fill with new values."""
    @property
    def shared_input_bytes(self) -> int:
        """Of these, in memory_of_graphs(): bytes that inputs of earlier captures have as well."""
    @property
    def retained_bytes(self) -> int:
        """Of tensors from outside that it keeps alive, parameters and inputs among them."""
    @property
    def lane_workspace_bytes(self) -> int:
        """Of cuBLAS, for lanes (`branches`)."""
    @property
    def kept_for_lanes_bytes(self) -> int:
        """The most of the pool that was free at a time, and kept from reuse for lanes."""
    @property
    def executable(self) -> ExecutableMemory:
        """Its executable; nothing where another graph that uses it counts it."""
    @property
    def shares_executable(self) -> bool:
        """Whether other graphs use it, too: of a pool with `share_executables`."""
    @property
    def blocks(self) -> int:
        """That the recording was handed out."""
    @property
    def handed_out_bytes(self) -> int:
        """Of all these blocks."""
    @property
    def at_most_bytes(self) -> int:
        """In use at a time, by the recording."""
    @property
    def left_bytes(self) -> int:
        """In use when it was over."""
    @property
    def peak_place(self) -> str:
        """The operation in which most was in use."""
    @property
    def at_peak(self) -> list[MemoryUser]:
        """What was in use there by line, the largest first."""
    def to_html(self) -> str:
        """A page that needs nothing else: who lives when, and where in the pool."""
    def to_text(self) -> str:
        """For people."""
    def to_json(self) -> str:
        """One JSON object."""
    def __str__(self) -> str: ...

def memory_of_graphs(device: torch.device) -> list[GraphMemory]:
    """Of each captured graph on the device."""

class WatchedMemory:
    """Memory of a device outside of torch's allocator, and what took it."""

    @property
    def what(self) -> str:
        """"context", "cuBLAS", "kernels", ..."""
    @property
    def bytes(self) -> int:
        """By how much the driver had less when that was over."""
    @property
    def first(self) -> str:
        """The operation that took the first of it."""

class ProcessMemory:
    """Who has what of a device's memory, in this process."""

    @property
    def device(self) -> torch.device:
        """Which device."""
    @property
    def used_bytes(self) -> int | None:
        """As the driver says, by all processes; None on the CPU."""
    @property
    def total_bytes(self) -> int:
        """That the device has."""
    @property
    def tensor_bytes(self) -> int:
        """Of torch's allocator outside of graphs' pools, what somebody holds."""
    @property
    def workspace_bytes(self) -> int:
        """Of these, cuBLAS's for graphs."""
    @property
    def returnable_bytes(self) -> int:
        """What nobody holds, in whole segments: `torch.cuda.empty_cache()` gives it back."""
    @property
    def piece_bytes(self) -> int:
        """What nobody holds, beside what somebody does."""
    @property
    def pools(self) -> list[PoolMemory]:
        """Of Pianola's graphs."""
    @property
    def other_pool_bytes(self) -> int:
        """Of pools of others."""
    @property
    def executables(self) -> ExecutableMemory:
        """Of Pianola's graphs."""
    @property
    def watched(self) -> list[WatchedMemory]:
        """What `pianola.watch_memory()` saw; nothing where there was none."""
    @property
    def rest_bytes(self) -> int:
        """In use, and in none of these."""
    def to_text(self) -> str:
        """For people."""
    def to_json(self) -> str:
        """One JSON object."""
    def __str__(self) -> str: ...

def process_memory(device: torch.device) -> ProcessMemory:
    """The account of now."""

class MemoryWatch:
    """Finds out who takes memory outside of torch's allocator."""

    def __init__(self, device: torch.device) -> None: ...

class CapturedMemory:
    """What was told of a graph, and what it then had."""

    def __init__(self, forecast: MemoryForecast, graph: GraphMemory, process: ProcessMemory) -> None: ...
    def to_html(self) -> str:
        """The graph's page."""
    def to_text(self) -> str:
        """For people."""
    def to_json(self) -> str:
        """One JSON object."""
    def __str__(self) -> str: ...

def drop_graphs_of_group(name: str) -> int:
    """Drops what is captured in all graphs that communicate by this process group. Returns how many there were."""

class CaptureOptions:
    """How a graph warms up, records and cleans up."""

    def __init__(
        self,
        *,
        device: torch.device,
        warmup: int,
        pool: tuple[int, int] | None,
        generators: Sequence[torch.Generator],
        inputs: Sequence[torch.Tensor],
        branches: int | str,
        parallel: ParallelOptions | None,
        mode: str,
        restore: bool,
        trace: bool,
        memory_limit: int,
        plan_memory: bool,
        accept_capture_path: bool,
        instantiate: bool,
        allow_empty: bool,
        stream: torch.Stream | None,
        check: str,
        names: Mapping[str, torch.Tensor],
    ) -> None: ...

class GraphPool:
    """Memory that several graphs share."""

    def __init__(
        self,
        device: torch.device,
        can_sleep: bool = False,
        plan_memory: bool = False,
        share_executables: bool = False,
    ) -> None: ...
    @property
    def id(self) -> tuple[int, int]:
        """torch's name for it."""
    @property
    def device(self) -> torch.device:
        """Where it lies."""
    def bytes(self) -> int:
        """What it holds."""
    def suspend(self, *, keep_executables: bool = True) -> int:
        """Gives its memory back to the driver until resume(), and returns the bytes; see `pianola.GraphPool`."""
    def resume(self) -> None:
        """Brings its memory back, with what tensors hold of it, and makes executables that were not kept."""
    @property
    def is_asleep(self) -> bool:
        """Between suspend() and resume()."""

class PoolAllocations:
    """What its thread allocates lies in the pool."""

    def __init__(self, pool: GraphPool) -> None: ...

def suspend_all(*, keep_executables: bool = True) -> int:
    """Suspends each pool of the process that can sleep, as GraphPool.suspend(), and returns the bytes that went
    back to the driver.

    Raises:
        UsageError: as GraphPool.suspend(), for the first pool that cannot; the others sleep.
    """

def resume_all() -> None:
    """Resumes each pool that sleeps.

    Raises:
        OutOfMemoryError: there is no room for one; it goes on sleeping.
    """

class GraphPoolFamily:
    """Pools whose graphs run one after the other, and share workspaces."""

    def __init__(self) -> None: ...

def new_pool_id() -> tuple[int, int]:
    """A name for a new pool."""

class GraphInfo:
    """What a captured graph holds and what making it cost."""

    @property
    def backend(self) -> str:
        """"cuda" or "tape"."""
    @property
    def nodes(self) -> int:
        """Nodes of the CUDA graph; on the tape, operations that a replay runs."""
    @property
    def types(self) -> dict[str, int]:
        """Nodes by type ("kernel", "memcpy", ...); on the tape, by operator."""
    @property
    def kernels(self) -> int:
        """Kernel nodes; 0 on the tape."""
    @property
    def edges(self) -> int:
        """Dependencies between nodes."""
    @property
    def operations(self) -> int:
        """Top-level ATen operations recorded; 0 without a trace."""
    @property
    def pool_bytes(self) -> int:
        """Bytes of the graph's pool, shared ones counted in full."""
    @property
    def planned_bytes(self) -> int:
        """Of these, laid out by `plan_memory`."""
    @property
    def planned_bound_bytes(self) -> int:
        """What no plan of the step's blocks, on its lanes, goes below; 0: not known."""
    @property
    def executable_bytes(self) -> int:
        """Device memory taken by the executable, outside torch's allocator; 0 where another graph that uses it counts
        it."""
    @property
    def shares_executable(self) -> bool:
        """Whether other graphs use it, too: of a pool with `share_executables`."""
    @property
    def retained_bytes(self) -> int:
        """Bytes of outside tensors that the graph keeps alive."""
    @property
    def draws_random_numbers(self) -> bool:
        """Whether a replay advances a generator."""
    @property
    def warmup_us(self) -> int:
        """Host time of the eager runs, in microseconds."""
    @property
    def agreement_us(self) -> int:
        """Host time until other ranks had stated what their graphs hold, in microseconds; 0 where it communicates with
        none."""
    @property
    def capture_us(self) -> int:
        """Host time of recording, in microseconds."""
    @property
    def instantiate_us(self) -> int:
        """Host time of making or updating the executable, in microseconds."""
    @property
    def warnings(self) -> list[str]:
        """What is sound but may surprise, one sentence each."""
    @property
    def branches(self) -> BranchInfo | None:
        """What `branches` came to; None where it was not asked for."""
    def report(self) -> Report:
        """All of it."""
    def __str__(self) -> str: ...

class Graph:
    """Work that was recorded once and is replayed with one launch."""

    def __init__(self, device: torch.device) -> None: ...
    def capture(self, step: Callable[[], Any], options: CaptureOptions) -> None:
        """Warms up, records `step`, and puts back what that wrote."""
    def update(self, step: Callable[[], Any], options: CaptureOptions) -> None:
        """Captures `step` in place of what the graph holds, and keeps the executable."""
    def replay(self, *sources: torch.Tensor) -> None:
        """Runs what was captured, on the current stream; copies `sources` into the graph's inputs first."""
    def instantiate(self) -> None:
        """Makes the executable from the captured graph as it is now."""
    def suspend(self, *, keep_executables: bool = True) -> int:
        """GraphPool.suspend() of the graph's pool, where no other graph is in it."""
    def resume(self) -> None:
        """GraphPool.resume() of the graph's pool, where no other graph is in it."""
    def reset(self) -> None:
        """Drops the graph and its memory; the object can capture again."""
    @property
    def captured(self) -> bool:
        """Whether there is something to replay."""
    @property
    def device(self) -> torch.device:
        """Where it runs."""
    def pool_id(self) -> tuple[int, int]:
        """The name of the graph's pool."""
    def info(self) -> GraphInfo:
        """What the graph holds and what making it cost."""
    def memory(self) -> GraphMemory:
        """What the graph has of the device's memory now, and who has what of its pool when."""
    def raw_executable(self) -> int:
        """The cudaGraphExec_t; 0 on the tape and before instantiate()."""
    def raw_graph(self) -> int:
        """The cudaGraph_t; 0 on the tape."""
    def dump_dot(self, file: str) -> None:
        """Writes the graph in Graphviz's language."""
    def dump_lanes(self, file: str) -> None:
        """Draws the lanes of `branches` as an SVG picture."""

class CaptureScope:
    """Captures what this thread runs between construction and end()."""

    def __init__(self, graph: Graph, options: CaptureOptions) -> None: ...
    def end(self) -> None:
        """Ends the capture; the graph can be replayed."""
    def fail(self, exception: BaseException) -> None:
        """Abandons the capture; raises an explanation where capturing is what caused the exception."""

def is_recording() -> bool:
    """Whether a capture of this thread records; not while it warms up."""

class Schedule:
    """The order of forwards and backwards on one rank of a pipeline."""

    @staticmethod
    def parse(text: str, *, layers_per_chunk: Sequence[int] = []) -> Schedule:
        """From "1,1,-1,-1": c is the next forward of chunk c, counted from 1, and -c its next backward; -c-0.5 are the
        gradients of its weights, where they are delayed."""
    @staticmethod
    def from_order(order: Sequence[float], *, layers_per_chunk: Sequence[int] = []) -> Schedule:
        """From Transformer Engine's `_order`."""
    @property
    def chunks(self) -> int:
        """Chunks of the model on this rank."""
    @property
    def microbatches(self) -> int:
        """Microbatches of one iteration."""
    @property
    def total_layers(self) -> int:
        """Layers of all chunks."""
    def layers(self, chunk: int) -> int:
        """Layers of a chunk, counted from 1."""
    def first_layer(self, chunk: int) -> int:
        """How many layers the chunks before this one have."""
    def delays_weight_gradients(self, chunk: int) -> bool:
        """Whether its backwards leave the gradients of weights for later."""
    def depth(self, chunk: int) -> int:
        """Microbatches of a chunk that are in flight at once."""
    def __str__(self) -> str: ...
    def __repr__(self) -> str: ...
    def __eq__(self, other: object) -> bool: ...
    @staticmethod
    def gpipe(
        *,
        pipeline_size: int,
        microbatches: int,
        rank: int = 0,
        virtual_size: int = 1,
        layers_per_chunk: Sequence[int] = [],
    ) -> Schedule:
        """All forwards, then all backwards."""
    @staticmethod
    def one_f_one_b(
        *,
        pipeline_size: int,
        microbatches: int,
        rank: int = 0,
        virtual_size: int = 1,
        layers_per_chunk: Sequence[int] = [],
    ) -> Schedule:
        """One forward, one backward in turn (1F1B)."""
    @staticmethod
    def interleaved(
        *,
        pipeline_size: int,
        microbatches: int,
        rank: int = 0,
        virtual_size: int = 1,
        layers_per_chunk: Sequence[int] = [],
    ) -> Schedule:
        """Interleaved 1F1B: several chunks on each rank."""

class GradPolicy:
    """How the backward pass hands out the gradients of parameters."""

    accumulate: ClassVar[GradPolicy]
    """The graph itself adds into `p.grad`."""
    clone: ClassVar[GradPolicy]
    """Through autograd, as copies."""
    alias: ClassVar[GradPolicy]
    """Through autograd, as the graph's own buffers."""
    __members__: ClassVar[Mapping[str, GradPolicy]]
    def __init__(self, value: int) -> None: ...
    def __int__(self) -> int: ...
    def __index__(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def value(self) -> int: ...

class OutputPolicy:
    """What a call returns."""

    alias: ClassVar[OutputPolicy]
    """The graph's own buffers, which the next call overwrites."""
    clone: ClassVar[OutputPolicy]
    """Copies that are the caller's."""
    __members__: ClassVar[Mapping[str, OutputPolicy]]
    def __init__(self, value: int) -> None: ...
    def __int__(self) -> int: ...
    def __index__(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def value(self) -> int: ...

class OnMismatch:
    """What to do with a call that differs from what was captured."""

    refuse: ClassVar[OnMismatch]
    """Raise GuardError."""
    eager: ClassVar[OnMismatch]
    """Run the original."""
    __members__: ClassVar[Mapping[str, OnMismatch]]
    def __init__(self, value: int) -> None: ...
    def __int__(self) -> int: ...
    def __index__(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def value(self) -> int: ...

class OnFull:
    """What to do with a call that finds every slot between forward and backward."""

    refuse: ClassVar[OnFull]
    """Raise UsageError."""
    overtake: ClassVar[OnFull]
    """Take the slot of the oldest call, whose backward is refused from then on."""
    __members__: ClassVar[Mapping[str, OnFull]]
    def __init__(self, value: int) -> None: ...
    def __int__(self) -> int: ...
    def __index__(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def value(self) -> int: ...

class OnOtherMode:
    """What to do with a call in a mode that was not captured."""

    refuse: ClassVar[OnOtherMode]
    """Raise GuardError."""
    eager: ClassVar[OnOtherMode]
    """Run the original."""
    capture: ClassVar[OnOtherMode]
    """Capture it, in this call."""
    __members__: ClassVar[Mapping[str, OnOtherMode]]
    def __init__(self, value: int) -> None: ...
    def __int__(self) -> int: ...
    def __index__(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def value(self) -> int: ...

class CallableInfo:
    """What a graphed callable holds."""

    @property
    def graphs(self) -> int:
        """Captured graphs: forward, backward, delayed weights per slot; evaluation."""
    @property
    def parameters(self) -> int:
        """Parameters whose gradients the graph adds to `p.grad`."""
    @property
    def through_autograd(self) -> int:
        """Parameters whose gradients go through autograd."""
    @property
    def delayed(self) -> int:
        """Of both, those whose gradients wait for backward_weights()."""
    @property
    def slots(self) -> int:
        """Calls that may be in flight."""
    @property
    def pool_bytes(self) -> int:
        """Bytes of the pool, shared ones counted in full."""
    @property
    def static_bytes(self) -> int:
        """Bytes of static inputs and parameter gradients, outside the pool."""
    @property
    def executable_bytes(self) -> int:
        """Device memory taken by the executables, outside torch's allocator."""
    @property
    def warnings(self) -> list[str]:
        """What is sound but may surprise, one sentence each."""
    @property
    def branches(self) -> list[BranchInfo]:
        """What `branches` came to, per graph: per slot the forward and the backward pass. Empty where it was not asked
        for."""
    def report(self) -> Report:
        """All of it."""
    def __str__(self) -> str: ...

class CallableOptions:
    """How make_graphed_callables captures."""

    def __init__(
        self,
        *,
        device: torch.device,
        warmup: int,
        grad: GradPolicy,
        output: OutputPolicy,
        slots: int,
        retain_graph: bool,
        allow_unused_input: bool,
        accept_capture_path: bool,
        on_mismatch: OnMismatch,
        on_other_mode: OnOtherMode,
        on_full: OnFull,
        through_autograd: Sequence[torch.Tensor],
        delay_weight_gradients: bool,
        schedule: Schedule | None,
        pool: tuple[int, int] | None,
        generators: Sequence[torch.Generator],
        branches: int | str,
        parallel: ParallelOptions | None,
        mode: str,
        pre_warmup: Callable[[], Any] | None,
        post_warmup: Callable[[], Any] | None,
        capture_hooks: Sequence[dict[str, Callable[[], None]]],
        replay_hooks: Sequence[dict[str, Any]],
    ) -> None: ...

class GraphedCallable:
    """A captured callable: tensors in, tensors out."""

    def call(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Replays the forward pass."""
    def backward_weights(self, microbatch: int = 0) -> bool:
        """Computes the gradients of weights that the oldest backward left for later. False: nothing was left."""
    def static_inputs(self) -> list[torch.Tensor]:
        """The tensors that a call copies its inputs into; passed themselves, they are not copied."""
    def check_current(self, output: torch.Tensor) -> None:
        """Raises ReplayError where a later call has overwritten `output`."""
    @property
    def in_flight(self) -> int:
        """Calls between forward and backward, or whose weights' gradients are not computed yet."""
    def next_microbatch(self) -> int:
        """Whose turn it is in the schedule, counted from 1."""
    def restart_schedule(self) -> None:
        """Forgets how far an iteration came."""
    def reset(self) -> None:
        """Drops the graphs and their memory."""
    def pool_id(self) -> tuple[int, int]:
        """The name of its pool."""
    def info(self) -> CallableInfo:
        """What it holds."""

def make_graphed_callables(
    functions: Sequence[Callable[..., Any]],
    modules: Sequence[torch.nn.Module | None],
    samples: Sequence[Sequence[torch.Tensor]],
    options: CallableOptions,
) -> list[GraphedCallable]:
    """Captures functions of tensors to lists of tensors; `modules` has those whose training flags and parameters
    count."""

def expose_to_autograd(parameters: Sequence[torch.Tensor]) -> None:
    """Lets autograd see these parameters in all calls of graphed callables whose backward can still come."""

def drop_empty_hooks(tensor: torch.Tensor) -> None:
    """Takes away the empty dictionaries that removed hooks leave on a tensor."""

class SignatureInfo:
    """One signature that a graphed function knows."""

    @property
    def signature(self) -> str:
        """As in "Float[8, 16] cpu"."""
    @property
    def kind(self) -> str:
        """"undecided", "inference", "autograd" or "step"."""
    @property
    def state(self) -> str:
        """"warming up", "captured" or "eager"."""
    @property
    def warmup_calls(self) -> int:
        """Eager calls before the capture."""
    @property
    def graphs(self) -> int:
        """That it keeps now."""
    @property
    def recaptures(self) -> int:
        """Captures after the first because what was captured had become stale."""
    @property
    def replays(self) -> int:
        """Calls that were replayed."""
    @property
    def eager_calls(self) -> int:
        """Calls that ran eagerly, warm-up included; not those in which parts are looked for."""
    @property
    def misses(self) -> int:
        """Replays that read another value than their capture, so that the call ran eagerly."""
    @property
    def reads_values(self) -> bool:
        """It asks the device for values."""
    @property
    def reason(self) -> str:
        """Why it stays eager; empty for others."""
    @property
    def gain(self) -> str:
        """What a replay is: "one launch in place of 530 operations"; empty where nothing is replayed."""
    @property
    def branches(self) -> list[BranchInfo]:
        """What `branches` came to, for each graph that it keeps now; a call with a backward pass has two."""

class GraphedInfo:
    """What a graphed function knows and keeps."""

    @property
    def signatures(self) -> list[SignatureInfo]:
        """The most recently called first."""
    @signatures.setter
    def signatures(self, value: Sequence[SignatureInfo]) -> None: ...
    @property
    def evictions(self) -> int:
        """Signatures that lost their graphs to others."""
    @property
    def input_bytes(self) -> int:
        """Of tensors that graphs copy inputs into; memory that several share counts once."""
    @input_bytes.setter
    def input_bytes(self, value: int) -> None: ...
    @property
    def unfollowed(self) -> list[str]:
        """What it reads on the host, and is not compared at each call."""
    @unfollowed.setter
    def unfollowed(self, value: Sequence[str]) -> None: ...
    @property
    def numbers(self) -> list[str]:
        """What becomes of numbers among the arguments that change."""
    @numbers.setter
    def numbers(self, value: Sequence[str]) -> None: ...
    @property
    def parts(self) -> list[str]:
        """Modules that read values that change, and stay eager."""
    @parts.setter
    def parts(self, value: Sequence[str]) -> None: ...
    @property
    def compiled(self) -> list[str]:
        """What became of compiling its modules."""
    @compiled.setter
    def compiled(self, value: Sequence[str]) -> None: ...
    def report(self) -> Report:
        """All of it."""
    def __str__(self) -> str: ...

class LayerInfo:
    """What one graphed layer of a model does and keeps."""

    @property
    def name(self) -> str:
        """As in model.named_modules()."""
    @property
    def info(self) -> GraphedInfo:
        """Per signature."""

class LayersInfo:
    """What the graphed layers of a model do and keep."""

    def __init__(self, layers: Sequence[tuple[str, GraphedInfo]]) -> None: ...
    @property
    def layers(self) -> list[LayerInfo]:
        """In the order of the model."""
    def report(self) -> Report:
        """A line for each layer, and why calls stay eager."""
    def __str__(self) -> str: ...

class GraphedOptions:
    """When a graphed function captures, and how much it keeps."""

    def __init__(
        self,
        *,
        warmup: int,
        capacity: int,
        max_in_flight: int,
        output: OutputPolicy,
        grad: GradPolicy,
        delay_weight_gradients: bool,
        retain_graph: bool,
        memory_limit: int,
        plan_memory: bool,
        accept_capture_path: bool,
        pool: tuple[torch.device, tuple[int, int]] | None,
        family: GraphPoolFamily | None,
        generators: Sequence[torch.Generator],
        branches: int | str,
        parallel: ParallelOptions | None,
        checks_reads: bool,
        mode: str,
        on_fallback: Callable[[str], Any],
    ) -> None: ...

class GraphedCache:
    """The graphs of one function, by signature of its calls."""

    def __init__(
        self,
        options: GraphedOptions,
        original: Callable[..., Any],
        module: torch.nn.Module | None,
    ) -> None: ...
    def run(
        self,
        key: int,
        call: Any,
        values: tuple[Any, ...],
        *inputs: torch.Tensor,
    ) -> tuple[tuple[torch.Tensor, ...], Any] | None:
        """The result's tensors and their structure; None where the call ran eagerly."""
    def remember(
        self,
        state: Any,
        number: int,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        followed: Sequence[int],
    ) -> None:
        """Such a call was replayed: call() knows the next ones, as long as the state's guard finds no difference."""
    def deliver(
        self,
        brought: Any,
        places: Sequence[int],
        inputs: Sequence[torch.Tensor],
        there: Sequence[torch.Tensor],
    ) -> None:
        """call() brings inputs at these places to the device itself, where they lie as in `inputs`, the tensors of a
        call, and the cache of `brought.graphed` knows the call. They arrive as `there` lies."""
    def knows_calls(self) -> bool:
        """Whether remember() was told of a call, and forget() not since."""
    def forget(self) -> None:
        """What remember() was told."""
    def backward_weights(self) -> bool:
        """Computes the gradients of weights that the oldest backward has left for later. False: none has left any."""
    def oldest_debt(self) -> int:
        """Rises from backward to backward of the process: which one backward_weights() is for; 0: none."""
    def refuse(self, key: int, reason: str, *inputs: torch.Tensor) -> None:
        """Keeps calls of this key with such inputs eager from now on."""
    def reset(self) -> None:
        """Forgets all signatures and drops their graphs."""
    def info(self) -> GraphedInfo:
        """What is known and kept, per signature."""
    def call(self, graphed: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a call; of one that nothing is known of, what `graphed._call(args, kwargs)` returns."""

def may_deliver() -> bool:
    """Whether inputs of a call may be brought to the device before the call: not in a capture, nor under modes."""

def given_numbers(
    sources: Sequence[int],
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Calls it; operations that it calls were given these numbers."""

def view_unseen(tensor: Any, type: Any) -> Any:
    """The tensor as one of a subclass. Who watches operations does not see it."""

def read_late(read: Callable[[torch.Tensor], Any], tensor: torch.Tensor) -> Any:
    """What `read` makes of a tensor; HostEffects says later what becomes of it."""

class Buckets:
    """Lengths to which batches are padded."""

    def __init__(
        self,
        sizes: Sequence[int],
        dim: int,
        padding: Sequence[tuple[str, int | None, bool | int | float | complex]],
        value: bool | int | float | complex,
    ) -> None: ...
    @property
    def sizes(self) -> list[int]:
        """Ascending."""
    @property
    def dim(self) -> int:
        """Where a padding names none."""
    def bucket_of(self, length: int) -> int:
        """The smallest of the sizes that is at least `length`."""

class BucketUse:
    """What one bucket has been used for."""

    @property
    def length(self) -> int:
        """The bucket's; 0 without buckets."""
    @property
    def batches(self) -> int:
        """Batches that were padded to it."""
    @property
    def elements(self) -> int:
        """The caller's, in tensors that are padded."""
    @property
    def padding(self) -> int:
        """Elements that padding added to them."""
    @property
    def waste_percent(self) -> float:
        """Share of the padded tensors that is padding."""

class StaticInputs:
    """The batch that a captured step reads."""

    def __init__(
        self,
        device: torch.device,
        pin: bool,
        double_buffer: bool,
        buckets: Buckets | None,
        path_of: Callable[[int, int], str],
    ) -> None: ...
    def prefetch(self, batch: Sequence[Sequence[torch.Tensor]]) -> None:
        """Starts the next batch on its way."""
    def advance(self) -> None:
        """Makes the prefetched batch the current one."""
    @property
    def key(self) -> int:
        """Names the static tensors of the current bucket: no others of this process have it."""
    def tensors(self) -> list[torch.Tensor]:
        """The static tensors of all microbatches, in order."""
    def for_each_bucket(self, visit: Callable[[int], Any]) -> None:
        """Calls `visit(length)` for each bucket, from the largest on, with the current batch in it."""
    @property
    def bucket(self) -> int:
        """The length of the current batch's bucket; 0 without buckets."""
    @property
    def device(self) -> torch.device:
        """Where they are."""
    @property
    def bytes(self) -> int:
        """Bytes on the device."""
    def bucket_uses(self) -> list[BucketUse]:
        """What each bucket was used for, ascending."""
    def report(self) -> Report:
        """Memory, and what padding wastes."""
    def __str__(self) -> str: ...

class Optimizer:
    """An optimizer all of whose state is on the device."""

    def step(self, *, grad_scale: torch.Tensor | None = None, found_inf: torch.Tensor | None = None) -> None:
        """Changes the parameters that have gradients."""
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Takes the gradients away, or fills them with zeros in place."""
    def gradients(self) -> list[torch.Tensor]:
        """Those that are there, in the order of the parameters."""
    @property
    def groups(self) -> int:
        """How many groups of parameters there are."""
    def parameters(self, group: int | None = None) -> list[torch.Tensor]:
        """Of one group, or of all in order."""
    def learning_rate(self, group: int = 0) -> torch.Tensor:
        """The rate itself, on the device: written in place, it takes effect with the next step or replay."""
    def set_learning_rate(self, rate: float, group: int | None = None) -> None:
        """Fills the rate of one group, or of all; in a captured step every replay fills it again."""
    def state(self) -> list[tuple[str, torch.Tensor]]:
        """What a step or a schedule writes, parameters excepted."""
    def state_dict(self) -> dict[str, Any]:
        """In the layout of torch.optim."""
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Copies into the tensors that are there, so that graphs go on with what is loaded."""

class SGD(Optimizer):
    """Stochastic gradient descent."""

    def __init__(self, groups: Sequence[tuple[Sequence[torch.Tensor], dict[str, Any]]]) -> None: ...

class Adam(Optimizer):
    """Adam, with the weight decay as a part of the gradient."""

    def __init__(self, groups: Sequence[tuple[Sequence[torch.Tensor], dict[str, Any]]]) -> None: ...

class AdamW(Optimizer):
    """Adam with decoupled weight decay."""

    def __init__(self, groups: Sequence[tuple[Sequence[torch.Tensor], dict[str, Any]]]) -> None: ...
    def weight_decay(self, group: int = 0) -> torch.Tensor:
        """The weight decay itself, where it is scheduled."""

class ExponentialMovingAverage:
    """Exponential moving averages of parameters."""

    def __init__(self, parameters: Sequence[torch.Tensor], decay: float = 0.999) -> None: ...
    def update(self) -> None:
        """Moves the averages towards the parameters."""
    def reset(self) -> None:
        """Makes the averages the parameters as they are."""
    def copy_to_parameters(self) -> None:
        """Makes the parameters the averages."""
    def swap(self) -> None:
        """Exchanges both: once to evaluate with the averages, and once more to go on training."""
    @property
    def averages(self) -> list[torch.Tensor]:
        """In the order of the parameters."""
    def state(self) -> list[tuple[str, torch.Tensor]]:
        """What an update writes: "average.3"."""
    def state_dict(self) -> dict[str, Any]:
        """{"decay": d, "averages": [...]}; the tensors are its own, not copies."""
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Copies into the averages."""

class LearningRate:
    """A learning rate as a function of the step and of a base rate."""

    def __init__(self, function: Callable[[int, float], float]) -> None: ...
    @staticmethod
    def constant() -> LearningRate:
        """The base rate."""
    @staticmethod
    def linear(steps: int, start: float, end: float) -> LearningRate:
        """From `start` times the base rate to `end` times it, in `steps` steps (LinearLR)."""
    @staticmethod
    def cosine(steps: int, minimum: float = 0.0) -> LearningRate:
        """Half a cosine from the base rate down to `minimum`, in `steps` steps (CosineAnnealingLR)."""
    @staticmethod
    def one_cycle(
        steps: int,
        *,
        pct_start: float = 0.3,
        div_factor: float = 25.0,
        final_div_factor: float = 10000.0,
    ) -> LearningRate:
        """Up to the base rate and down to nearly nothing, in `steps` steps all in all (OneCycleLR)."""
    @staticmethod
    def step_decay(every: int, gamma: float = 0.1) -> LearningRate:
        """Times `gamma` after every `every` steps (StepLR)."""
    @staticmethod
    def sequence(first: LearningRate, steps: int, second: LearningRate) -> LearningRate:
        """`first` for `steps` steps, then `second`, which counts from 0 there."""
    @staticmethod
    def warmup(steps: int, after: LearningRate, start: float = 0.0) -> LearningRate:
        """A linear rise from `start` times the base rate in `steps` steps, then `after`."""
    def __call__(self, step: int, base: float) -> float:
        """The rate of a step, counted from 0."""

class DeviceLearningRateSchedule:
    """A schedule whose rates lie in a table on the device."""

    def step(self) -> None:
        """Counts on, and writes the next rates."""
    @property
    def steps(self) -> int:
        """How many steps were taken."""
    def state_dict(self) -> dict[str, Any]:
        """{"steps": n, "base_rates": [...]}"""
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Writes the rates of the step that is loaded; a state of other base rates changes nothing."""
    def state(self) -> list[tuple[str, torch.Tensor]]:
        """The counter: what a step writes besides the rates."""

class LearningRateSchedule:
    """Writes the rates of an optimizer's groups, step by step."""

    @overload
    def __init__(self, optimizer: Optimizer, rate: LearningRate, base_rates: Sequence[float] = []) -> None: ...
    @overload
    def __init__(
        self,
        scalars: Sequence[torch.Tensor],
        rate: LearningRate,
        base_rates: Sequence[float] = [],
    ) -> None: ...
    def step(self) -> None:
        """Counts on, and writes the next rates."""
    @property
    def steps(self) -> int:
        """How many steps were taken."""
    def state_dict(self) -> dict[str, Any]:
        """{"steps": n, "base_rates": [...]}"""
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Writes the rates of the step that is loaded; a state of other base rates changes nothing."""
    @property
    def rates(self) -> list[float]:
        """What was written last, unrounded: one for each group."""
    def on_device(self, total_steps: int) -> DeviceLearningRateSchedule:
        """The same for capture, from this step on, with a table of the rates of steps 0 to `total_steps`."""

class NonFiniteFinding:
    """The first step in which a checked tensor was not finite."""

    @property
    def step(self) -> int:
        """Counted from 1."""
    @property
    def step_is_exact(self) -> bool:
        """Off after 2^24 steps: it was `step` or a later one."""
    @property
    def tensor(self) -> str:
        """The first one, in the order of the checks."""
    @property
    def is_nan(self) -> bool:
        """Else infinite."""
    @property
    def tensors(self) -> list[str]:
        """All of that step."""

class FiniteWatch:
    """Finds NaN and infinity without a host synchronization."""

    def __init__(self, device: torch.device, *, gradients: bool, max_tensors: int) -> None: ...
    def check(self, name: str, tensor: torch.Tensor) -> None:
        """Checks one tensor."""
    def check_all(self, tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Checks many at once."""
    def check_gradients(self, parameters: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Checks the gradients of those parameters that have one."""
    def check_gradient_norms(self, names: Sequence[str], norms: torch.Tensor) -> None:
        """Checks gradients by norms that are at hand: one for each name."""
    def found_inf(self) -> torch.Tensor:
        """Float32 [] on the device: 1 from the first bad check on, 0 before."""
    def end_step(self) -> None:
        """Counts the step, and sends the host word. Call it after the last check."""
    def abandon_step(self) -> None:
        """Forgets the checks since the last end_step(), after an exception in between."""
    def poll(self) -> None:
        """Throws NonFiniteError once the device has told that an earlier step was bad."""
    def wait(self) -> None:
        """Waits for the device, and throws NonFiniteError where any step so far was bad."""
    def find(self) -> NonFiniteFinding | None:
        """What poll() would throw, as values; waits for the device."""
    def reset(self, steps_done: int = 0) -> None:
        """Forgets what was found and goes on counting behind step `steps_done`, in place."""

class Fp8Recipe:
    """What layers compute with in 8 bits, and how."""

    def __init__(
        self,
        scaling: str = 'delayed',
        *,
        format: str = 'hybrid',
        margin: int = 0,
        amax_history_length: int = 1024,
        amax_compute: str = 'max',
        interval: int = 1,
        powers_of_two: bool = False,
    ) -> None: ...
    def to_text(self) -> str:
        """In words."""

class Fp8ScaleTable:
    """The scales of a model's layers, on its tensors."""

    def __init__(
        self,
        scale: torch.Tensor,
        history: torch.Tensor,
        updates: torch.Tensor,
        recipe: Fp8Recipe,
    ) -> None: ...

class Fp8LinearState:
    """What a layer has besides its parameters."""

    def __init__(self, recipe: Fp8Recipe, scales: Fp8ScaleTable | None, layer: int) -> None: ...
    def forward(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        trains: bool,
    ) -> torch.Tensor:
        """x @ weight.T + bias, as the innermost region says."""

class Fp8Region:
    """A region of this thread in which layers compute with 8 bits."""

    def __init__(
        self,
        enabled: bool,
        recipe: Fp8Recipe | None,
        calibrating: bool,
        is_first_microbatch: bool | None,
        reduce: Any,
    ) -> None: ...
    def enter(self) -> None:
        """Begins the region."""
    def exit(self) -> None:
        """Ends it, on the same thread; the outermost one computes scales."""

def next_island_number() -> int:
    """For call_island()."""

def islands_are_open() -> bool:
    """Whether a step runs on this thread that is observed or recorded."""

def is_in_island() -> bool:
    """Whether a part that stays eager runs in such a step."""

def call_island(
    function: Callable[..., Any],
    name: str,
    number: int,
    inputs: Sequence[torch.Tensor],
    numbers: Sequence[Any],
    is_found: bool = False,
) -> tuple[list[torch.Tensor], Any] | None:
    """Calls function(inputs, numbers), which returns (tensors, structure), as an island of the step that runs.
    None, of one that was found: it is to be called as it is."""

class OperationsSeen:
    """Context manager: calls note(name, inputs, written, outputs, number, reads, is_copy_to_host, draws,
    is_backward) at the end of each operation."""

    def __init__(self, note: Callable[..., Any]) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *args: Any) -> None: ...

def check_in_replays(
    check: Callable[..., Any],
    tensors: Sequence[torch.Tensor],
    copies: Sequence[torch.Tensor],
    what: str,
) -> bool:
    """Replays of the step that is captured call check(tensors), and end where it says no. False: it is no such
    step."""

class GradScaler:
    """Scales losses, and skips steps whose gradients overflowed."""

    def __init__(
        self,
        device: torch.device,
        *,
        init_scale: float,
        growth_factor: float,
        backoff_factor: float,
        growth_interval: int,
        enabled: bool,
    ) -> None: ...
    def scale(self, outputs: torch.Tensor) -> torch.Tensor:
        """The outputs times the scale."""
    def unscale_(self, optimizer: Optimizer) -> None:
        """Divides the gradients by the scale, in place."""
    def step(self, optimizer: Optimizer) -> None:
        """The optimizer's step, which leaves everything as it is where a gradient is not finite."""
    @overload
    def update(self) -> None:
        """Adapts the scale after all optimizers' steps."""
    @overload
    def update(self, new_scale: torch.Tensor) -> None:
        """Sets the scale."""
    @overload
    def update(self, new_scale: float) -> None:
        """Sets the scale."""
    def abandon_step(self) -> None:
        """Forgets what unscale_() and step() noted since the last update(), after an exception in between."""
    def is_enabled(self) -> bool:
        """Whether it does anything."""
    def get_growth_factor(self) -> float:
        """By which the scale grows."""
    def get_backoff_factor(self) -> float:
        """By which the scale shrinks."""
    def get_growth_interval(self) -> int:
        """After how many good steps in a row the scale grows."""
    @property
    def current_scale(self) -> torch.Tensor:
        """The scale itself: float32 [] on the device."""
    @property
    def growth_tracker(self) -> torch.Tensor:
        """Good steps in a row: int32 [] on the device."""
    @property
    def skipped_steps(self) -> torch.Tensor:
        """How many steps were skipped so far: int64 [] on the device, a copy."""
    def found_inf(self, optimizer: Optimizer) -> torch.Tensor:
        """Not 0 where the optimizer's gradients were not finite: float32 [], from unscale_() or step() to update()."""
    def state(self) -> list[tuple[str, torch.Tensor]]:
        """Every tensor that a step writes."""
    def state_dict(self) -> dict[str, Any]:
        """That of torch.amp.GradScaler; waits for the device."""
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Fills the tensors that are there, so that graphs go on with what is loaded."""

def clip_grad_norm_(
    parameters: Sequence[torch.Tensor],
    max_norm: float,
    norm_type: float,
    error_if_nonfinite: FiniteWatch | None,
    names: Sequence[str],
) -> torch.Tensor:
    """Scales the parameters' gradients so that their norm is at most `max_norm`; returns the norm before."""

def clip_gradients_norm_(
    gradients: Sequence[torch.Tensor],
    max_norm: float,
    norm_type: float,
    error_if_nonfinite: FiniteWatch | None,
    names: Sequence[str],
) -> torch.Tensor:
    """The same for gradients."""

def clip_grad_value_(parameters: Sequence[torch.Tensor], clip_value: float) -> None:
    """Brings each element of the parameters' gradients into [-clip_value, clip_value]."""

class RngFork:
    """While it is entered, the device's default generator draws from a named stream."""

    def __enter__(self) -> None: ...
    def __exit__(self, *error: Any) -> None: ...

class RngRewind:
    """While it is entered, streams and default generator draw on from a place."""

    def __enter__(self) -> None: ...
    def __exit__(self, *error: Any) -> None: ...

class RngPlace:
    """Where all streams and the default generator stood at one moment."""

class RngTracker:
    """Streams of random numbers by name."""

    def __init__(self, device: torch.device) -> None: ...
    def add(self, name: str, seed: int) -> None:
        """A new stream."""
    def names(self) -> list[str]:
        """Of all streams, in the order in which they were added."""
    def fork(self, name: str) -> RngFork:
        """For `with`: what is drawn inside comes from that stream."""
    def place(self) -> RngPlace:
        """Where streams and default generator stand now, to draw the same numbers once more."""
    def rewind(self, place: RngPlace) -> RngRewind:
        """For `with`: what is drawn inside is what was drawn from that place on."""
    def generators(self) -> list[torch.Generator]:
        """Of all streams, for captures."""
    def state_dict(self) -> dict[str, torch.Tensor]:
        """Where each stream stands."""
    def load_state_dict(self, state_dict: Mapping[str, torch.Tensor]) -> None:
        """Streams that are not there yet are made; graphs go on with the loaded state."""

class Checkpoint:
    """The parts of a training run in one file."""

    def __init__(self) -> None: ...
    def add_part(self, name: str, save: Callable[[], Any], load: Callable[[Any], Any]) -> None:
        """A part that keeps its state itself. `load` refuses with an Error, and has changed nothing then."""
    def add_tensors(self, name: str, tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Tensors by name, which are loaded in place."""
    def add_generator(self, name: str, generator: torch.Generator) -> Self:
        """A generator's place in its numbers: torch.default_generator, torch.cuda.default_generators[0]."""
    def save(self, file: str | PathLike[str]) -> None:
        """Writes the file, or replaces it in one move."""
    def load(self, file: str | PathLike[str]) -> None:
        """Loads all parts, or none."""

class Stage:
    """Which of its two functions an iteration runs."""

    training: ClassVar[Stage]
    """The step that trains."""
    validation: ClassVar[Stage]
    """The step that validates."""
    __members__: ClassVar[Mapping[str, Stage]]
    def __init__(self, value: int) -> None: ...
    def __int__(self) -> int: ...
    def __index__(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def value(self) -> int: ...

class IterationInfo:
    """One signature of a stage of a FullIteration."""

    @property
    def stage(self) -> str:
        """"training" or "validation"."""
    @property
    def signature(self) -> str:
        """Microbatches of these shapes: "Long[4, 64] cuda:0, with gradients"."""
    @property
    def state(self) -> str:
        """"warming up", "captured" or "eager"."""
    @property
    def eager_calls(self) -> int:
        """Iterations that ran eagerly, warm-up included."""
    @property
    def replays(self) -> int:
        """Iterations that were replayed."""
    @property
    def recaptures(self) -> int:
        """Captures after the first."""
    @property
    def reason(self) -> str:
        """Why it stays eager, or why its latest capture was dropped."""
    @property
    def branches(self) -> BranchInfo | None:
        """What `branches` came to."""

class FullIterationInfo:
    """What a FullIteration knows and keeps."""

    @property
    def signatures(self) -> list[IterationInfo]:
        """Training first; of a stage, most recently called first."""
    @signatures.setter
    def signatures(self, value: Sequence[IterationInfo]) -> None: ...
    @property
    def evictions(self) -> int:
        """Signatures that lost their graph to others."""
    @evictions.setter
    def evictions(self, value: int) -> None: ...
    @property
    def pool_bytes(self) -> int:
        """Of the pool that all graphs share."""
    @pool_bytes.setter
    def pool_bytes(self, value: int) -> None: ...
    @property
    def input_bytes(self) -> int:
        """Of tensors that graphs copy inputs into; memory that several share counts once."""
    @input_bytes.setter
    def input_bytes(self, value: int) -> None: ...
    @property
    def unfollowed(self) -> list[str]:
        """What it reads on the host, and is not compared at each call."""
    @unfollowed.setter
    def unfollowed(self, value: Sequence[str]) -> None: ...
    @property
    def compiled(self) -> list[str]:
        """What became of compiling its modules."""
    @compiled.setter
    def compiled(self, value: Sequence[str]) -> None: ...
    def report(self) -> Report:
        """The same as a report."""
    def __str__(self) -> str: ...

class FullIterationOptions:
    """When a FullIteration captures, and how much it keeps."""

    def __init__(
        self,
        *,
        warmup: int,
        capacity: int,
        output: OutputPolicy,
        eager_fallback: bool,
        on_fallback: Callable[[str], Any],
        generators: Sequence[torch.Generator],
        memory_limit: int,
        plan_memory: bool,
        accept_capture_path: bool,
        branches: int | str,
        parallel: ParallelOptions | None,
        strict: bool,
        pool: tuple[torch.device, tuple[int, int]] | None,
        mode: str,
    ) -> None: ...

def iteration_warmup(config: CudaGraphConfig) -> int:
    """What a configuration says of full iterations; it is checked first."""

class IterationCache:
    """The graphs of whole iterations, by stage and signature."""

    def __init__(self, options: FullIterationOptions) -> None: ...
    def run(
        self,
        stage: Stage,
        key: int,
        call: Any,
        fixed: Sequence[torch.Tensor],
        *copied: torch.Tensor,
    ) -> tuple[Any, tuple[torch.Tensor, ...] | None, bool] | None:
        """What was captured, its tensors, and whether they are the same each time; None where the call ran eagerly."""
    def capture(self, stage: Stage, key: int, call: Any, fixed: Sequence[torch.Tensor]) -> None:
        """Captures a call that was never run; nothing where it has a graph."""
    def refuse(
        self,
        stage: Stage,
        key: int,
        reason: str,
        fixed: Sequence[torch.Tensor],
        *copied: torch.Tensor,
    ) -> None:
        """Keeps iterations of this key with such inputs eager; raises where there is no eager_fallback."""
    def is_due(self, stage: Stage, key: int, fixed: Sequence[torch.Tensor]) -> bool:
        """Whether the next run of this call is going to capture it."""
    def reset(self, stage: Stage) -> None:
        """Forgets the stage's signatures and drops their graphs."""
    def info(self) -> FullIterationInfo:
        """What is known and kept."""

class TensorDifference:
    """How two tensors that should be the same differ."""

    @property
    def name(self) -> str:
        """"output 0", "input 1", "grad of model.0.weight", "model.0.weight", "generator of cuda:0"."""
    @property
    def role(self) -> str:
        """"output", "input" (as the step left it), "gradient", "state" or "generator"."""
    @property
    def step(self) -> int:
        """Counted from 1."""
    @property
    def shape(self) -> str:
        """"Float [16, 64]\""""
    @property
    def elements(self) -> int:
        """How many the tensor has."""
    @property
    def differing(self) -> int:
        """Elements that differ beyond the tolerance."""
    @property
    def max_absolute(self) -> float:
        """Infinite where NaN or an infinity meets a number."""
    @property
    def max_relative(self) -> float:
        """To eager's value, where that is not 0."""
    @property
    def max_ulps(self) -> int:
        """Of floating-point tensors; NaN against a number is the largest value."""
    @property
    def first(self) -> str:
        """"[3, 7]: eager 0.125, graph 0.5\""""
    @property
    def note(self) -> str:
        """Where there is more to say: another shape, undefined on one side."""

class DifferenceOrigin:
    """Where a difference starts."""

    @property
    def op(self) -> str:
        """"aten::mul.Tensor\""""
    @property
    def number(self) -> int:
        """Of the operations of the step, from 1."""
    @property
    def module(self) -> str:
        """Path of the module, or open user scopes."""
    @property
    def file(self) -> str:
        """Of the user's line; empty where it is not known."""
    @property
    def line(self) -> int:
        """In that file; 0 where it is not known."""
    @property
    def function(self) -> str:
        """The user's function; may be empty."""
    @property
    def what(self) -> str:
        """"its result 0 differs, its inputs are the same\""""

class MissingState:
    """A tensor that the step writes and nobody listed."""

    @property
    def shape(self) -> str:
        """"Float [16, 64]\""""
    @property
    def op(self) -> str:
        """The first operation that writes it."""
    @property
    def file(self) -> str:
        """Of the user's line; empty where it is not known."""
    @property
    def line(self) -> int:
        """In that file; 0 where it is not known."""

class VerifyReport:
    """What verify() found out."""

    @property
    def verdict(self) -> str:
        """"equal", "differs", "nondeterministic" or "failed"."""
    @property
    def ok(self) -> bool:
        """The verdict is equal."""
    @property
    def steps(self) -> int:
        """That were compared."""
    @property
    def tensors(self) -> int:
        """Compared at each step."""
    @property
    def within_tolerance(self) -> bool:
        """Equal only thanks to a tolerance."""
    @property
    def error(self) -> str:
        """Why it failed: what was raised, by which side, in which step."""
    @property
    def differences(self) -> list[TensorDifference]:
        """Of the first step that differs, in the order in which eager computes them; empty where equal."""
    @property
    def eager_differences(self) -> list[TensorDifference]:
        """Tensors in which two eager runs differ, at the first step in which one does."""
    @property
    def origin(self) -> DifferenceOrigin | None:
        """Where the difference starts; None where that was not found."""
    @property
    def missing_state(self) -> list[MissingState]:
        """Tensors that the step writes and nobody listed."""
    @property
    def notes(self) -> list[str]:
        """What else there is to know, a sentence each."""
    @property
    def eager_us(self) -> int:
        """Of all eager steps, comparing not counted, in microseconds."""
    @property
    def graphed_us(self) -> int:
        """Of all graphed steps, in microseconds."""
    @property
    def total_us(self) -> int:
        """Of the whole verification, in microseconds."""
    @property
    def exit_code(self) -> int:
        """0 where ok, 1 where it failed, 3 otherwise."""
    def to_text(self) -> str:
        """For people."""
    def to_json(self, indent: int = 2) -> str:
        """One JSON object."""
    def __str__(self) -> str: ...

def verify(
    eager: Callable[..., list[torch.Tensor]],
    graphed: Callable[..., list[torch.Tensor]],
    *,
    state: Sequence[tuple[str, torch.Tensor]],
    steps: int,
    inputs: Sequence[Sequence[torch.Tensor]],
    between: Callable[[int], Any] | None,
    reset: Callable[[], Any] | None,
    graphed_warmup: int,
    tolerance: Mapping[torch.dtype, tuple[float, float, int]],
    repeat_eager: bool,
    poison: bool,
    narrow: bool,
    generators: Sequence[torch.Generator],
    subject: str,
) -> VerifyReport:
    """Runs both from the same state and compares all that they leave behind."""

def take_plain_apart(tree: Any) -> tuple[list[Any], bytes | tuple[bytes, tuple[Any, ...]]] | None:
    """Leaves of a tree, in pytree's order, and what is equal for trees of the same structure.

    None: it holds something else than tuples, lists and dicts (of str and int) of tensors, numbers, strings,
    bytes and None.
    """

def put_plain_together(outline: Any, frozen: list[tuple[int, Any]], tensors: Sequence[torch.Tensor]) -> Any:
    """The tree of an outline, with these tensors; `frozen` has the index and the value of each other leaf."""

class ModuleWatch:
    """Tells whether a module is as it was."""

    def __init__(self, module: torch.nn.Module) -> None: ...
    def state(self) -> tuple[int, list[bool]]:
        """A number that changes when a parameter, buffer or submodule is replaced, and the training flags."""

class FrameWatch:
    """Tells of each function of Python that begins on this thread."""

    def __init__(self, wants: Callable[[CodeType], bool], on_frame: Callable[[FrameType], None]) -> None: ...
    def begin(self) -> None:
        """Starts; another profile function of the thread goes on hearing what it heard."""
    def end(self) -> None:
        """Stops, and leaves the other profile function alone."""
    @property
    def error(self) -> str:
        """What went wrong while it watched; empty where nothing did."""

class HostGuard:
    """What a call read on the host, as it was."""

    def __init__(self) -> None: ...
    def add(self, kind: str, owner: Any, key: Any, value: Any, missing: Any) -> None:
        """A place and what has to be there; places are numbered as they are added."""
    def seal(self) -> None:
        """After the last add()."""
    def check(self) -> int:
        """The number of the first place that is not as it was; -1 if all are."""

def host_parts_are_watched() -> bool:
    """Whether a step is observed or captured on this thread."""

def begin_host_part(
    run: Any,
    on_varying: Any,
    parameters: Sequence[torch.Tensor],
    device: torch.device,
    reads: str = '',
    save: Any = None,
    runs_half: bool = False,
    may_run_twice: bool = False,
    adam: Any = None,
) -> int:
    """A part of the host begins, in a step that is observed or captured: replays call `run` in its place. Without
    one it is only looked at, and `on_varying` is called where that is not enough. A part that `reads` ("values",
    or "overflow", which is 0 where all is well) may ask for values that the graph computes; parts within it may
    not. What `save()` returns is called where a capture is taken back. One that `runs_half` while it is
    captured, without its hooks, runs again for the first launch. One that `may_run_twice` does nothing on the
    host but what `save()` puts back. `adam`: the torch.optim.Adam or AdamW whose step it is, without hooks;
    replays then need not run it."""

def end_host_part(depth: int) -> bool:
    """It ends. `depth` is what its begin gave: how many were open. Returns whether it made history for autograd, so
    that it cannot be run again."""

def same_value(one: Any, other: Any) -> bool:
    """Whether no program can tell two values apart: equal in type and to the bit, or the same object."""

def outline_of(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same sizes, strides, type and keys that has no memory."""

def operations_are_watched() -> bool:
    """Whether an observer sees the operations of this thread now."""

def note_compiled_code(what: str, is_new: bool = False) -> None:
    """The observed step runs code of torch.compile's that no graph can hold, or that it has just made."""

class PythonHit:
    """A watched call at one place."""

    @property
    def key(self) -> int:
        """Of what was called."""
    @property
    def function(self) -> str:
        """The user's function that calls; empty where no user's frame does."""
    @property
    def file(self) -> str:
        """Where that is."""
    @property
    def line(self) -> int:
        """In that file."""
    @property
    def code(self) -> Any:
        """Of that function; None where there is none."""
    @property
    def instruction(self) -> int:
        """Offset of the call in its bytecode; -1 where it goes through other code."""
    @property
    def through(self) -> int:
        """Kinds of all files between the call and the user's frame."""
    @property
    def subject(self) -> int:
        """id() of the object that the method belongs to, with WATCH_SELF."""
    @property
    def device(self) -> str:
        """Of that object where it is a tensor."""
    @property
    def module(self) -> str:
        """Path of the module whose forward runs."""
    @property
    def times(self) -> int:
        """How often."""

class PythonWatch:
    """Sees what a step calls that no operation shows."""

    def __init__(self, classify: Callable[[str], int]) -> None: ...
    def add(self, callable: Any, key: int, flags: int = 0) -> bool:
        """Watches for calls from now on; False where a profile function does not see calls of it."""
    def name_modules(self, paths: dict[torch.nn.Module, str]) -> None:
        """The paths of modules, instead of the earlier ones."""
    def observe_modules(self, modules: list[torch.nn.Module], observer: Callable[..., None] | None) -> None:
        """Calls of these modules are told: observer(module, "enter", (args, kwargs), (function, file, line)), and
        observer(module, "leave", result, None).
        """
    def begin(self) -> None:
        """Starts; what is seen is added to the hits."""
    def end(self) -> None:
        """Stops, and puts the thread's other profile function back."""
    def hits(self) -> list[PythonHit]:
        """What was seen."""
    def clear_hits(self) -> None:
        """Forgets it."""
    def executed(self) -> list[Any]:
        """The user's functions that ran: (code, globals), in the order of their first calls."""

WATCH_QUIET: int

WATCH_SELF: int

FILE_HIDDEN: int

FILE_BOUNDARY: int

class HazardRule:
    """One kind of thing that goes wrong when PyTorch code is captured."""

    @property
    def id(self) -> str:
        """"PG101"."""
    @property
    def kind(self) -> str:
        """The same in words."""
    @property
    def severity(self) -> str:
        """Of most cases: "breaks capture", "wrong numbers", "memory", "performance" or "style"."""
    @property
    def title(self) -> str:
        """What happens."""
    @property
    def why(self) -> str:
        """What a graph does with it."""
    @property
    def fix(self) -> str:
        """What to do instead."""
    @property
    def cuda_only(self) -> bool:
        """There is no such thing on the CPU."""
    def __repr__(self) -> str: ...

def hazard_rules() -> list[HazardRule]:
    """All rules, by id."""

class Finding:
    """One hazard at one place."""

    def __init__(
        self,
        rule: str,
        *,
        severity: str = '',
        op: str = '',
        module: str = '',
        place: tuple[str, str, int] = ('', '', 0),
        what: str = '',
        evidence: str = '',
        fix: str = '',
        iteration: int = 0,
        times: int = 1,
    ) -> None: ...
    @property
    def rule(self) -> str:
        """Id of the rule: "PG101"."""
    @property
    def kind(self) -> str:
        """The rule in words."""
    @property
    def severity(self) -> str:
        """"breaks capture", "wrong numbers", "memory", "performance" or "style"."""
    @property
    def op(self) -> str:
        """The call that shows it; may be empty."""
    @property
    def module(self) -> str:
        """Path of the module; empty where it is not known."""
    @property
    def function(self) -> str:
        """The user's function; may be empty."""
    @property
    def file(self) -> str:
        """Its file; empty where it is not known."""
    @property
    def line(self) -> int:
        """In that file; 0 where it is not known."""
    @property
    def what(self) -> str:
        """What happened here."""
    @property
    def evidence(self) -> str:
        """What was seen; may be empty."""
    @property
    def fix(self) -> str:
        """What to do here."""
    @property
    def iteration(self) -> int:
        """In which it was seen first; 0: before, between or after the iterations."""
    @property
    def times(self) -> int:
        """How often."""
    def __repr__(self) -> str: ...

class AuditCut:
    """Where the host waits: a graph of the step ends, and the next one begins."""

    @property
    def op(self) -> str:
        """The call that does."""
    @property
    def file(self) -> str:
        """Its file; empty where it is not known."""
    @property
    def line(self) -> int:
        """In that file; 0 where it is not known."""
    @property
    def before(self) -> int:
        """Operations from the cut before it, or from the begin of the step."""

class AuditReport:
    """All hazards of a step, worst first, each once."""

    @property
    def subject(self) -> str:
        """What was audited."""
    @property
    def device(self) -> str:
        """Where the step computes."""
    @property
    def iterations(self) -> int:
        """That were watched."""
    @property
    def operations(self) -> int:
        """Of the last one."""
    @property
    def cuts(self) -> list[AuditCut]:
        """Of the last one, in order."""
    @property
    def findings(self) -> list[Finding]:
        """Worst first."""
    @property
    def notes(self) -> list[str]:
        """What the audit could not see, and why."""
    @property
    def ok(self) -> bool:
        """Nothing breaks the capture or makes its numbers wrong."""
    @property
    def worst(self) -> str | None:
        """The worst severity; None where nothing was found."""
    @property
    def exit_code(self) -> int:
        """0 where ok, 3 otherwise."""
    def to_text(self) -> str:
        """For people."""
    def to_json(self, indent: int = 2) -> str:
        """One JSON object."""
    def to_sarif(self) -> str:
        """SARIF 2.1.0, which editors and code hosts show at the lines."""
    def add(self, finding: Finding) -> None:
        """One more."""
    def kept(self, keep: Callable[[Finding], bool]) -> AuditReport:
        """Another report, with those findings alone for which `keep` is true."""
    def __str__(self) -> str: ...

class AuditSession:
    """One audit, run by run."""

    def __init__(
        self,
        *,
        iterations: int,
        warmup: int,
        sources: bool,
        trial: bool,
        restore: bool,
        generators: Sequence[torch.Generator],
        capture_warmup: int,
        device: torch.device | None,
        free_memory: int | None,
        subject: str,
    ) -> None: ...
    def begin_warmup(self) -> None:
        """A run that is not compared."""
    def end_warmup(self) -> None:
        """It is over."""
    def begin(self, inputs: Sequence[torch.Tensor], names: list[tuple[str, torch.Tensor]]) -> None:
        """A run begins: with these arguments, and tensors by name."""
    def end(self, results: Sequence[torch.Tensor]) -> None:
        """It is over, with these results."""
    def end_by(self, exception: BaseException, message: str, place: tuple[str, str, int]) -> None:
        """It raised."""
    def watch(self, python: PythonWatch) -> None:
        """Begins the watch, which tells the session of modules."""
    def operations(self) -> int:
        """That began in this run."""
    def add(self, finding: Finding) -> None:
        """A hazard that was found elsewhere."""
    def add_note(self, note: str) -> None:
        """What the audit could not see."""
    def try_capture(self, step: Callable[[], Any], between: Callable[[], Any] | None) -> None:
        """Captures the step, and notes what stands in the way."""
    def finish(self) -> AuditReport:
        """Compares the runs, and puts state back."""

def gradient_stream(leaf: torch.Tensor) -> int | None:
    """The stream on which the leaf's gradient is accumulated, where that is known; 0 is the default stream."""

class ScopePrediction:
    """What an iteration would take with a graph of a scope."""

    @property
    def scope(self) -> str:
        """"each layer", "forward and backward", "iteration without optimizer" or "whole iteration"."""
    @property
    def obstacle(self) -> str:
        """Why it cannot be captured as the profile stands; empty: nothing seen."""
    @property
    def low_us(self) -> float:
        """Duration of an iteration at best; 0: it cannot be told."""
    @property
    def expected_us(self) -> float:
        """0: it cannot be told, see `obstacle`."""
    @property
    def high_us(self) -> float:
        """Duration of an iteration at worst; 0: it cannot be told."""
    @property
    def speedup(self) -> float:
        """Of an iteration as it is now over `expected_us`."""
    @property
    def launches(self) -> float:
        """Calls that launch, per iteration."""
    @property
    def pool_bytes(self) -> int | None:
        """Device memory of the graphs' pool; None: the profile does not say what the allocator did."""
    @property
    def input_bytes(self) -> int:
        """Of the static copies of inputs, as far as the profile shows them."""
    @property
    def executable_bytes(self) -> int:
        """Of the executable graphs, outside of torch's allocator."""
    @property
    def fits(self) -> bool | None:
        """Whether captures find room in what the device has left; None: the profile does not tell."""
    @property
    def planned_bytes(self) -> int | None:
        """Of the pool with plan_memory, where the graph would fit with that alone; else None."""
    @property
    def memory_verdict(self) -> str:
        """Whether it fits, in a sentence with the numbers; empty: the profile does not tell."""
    @property
    def cpp(self) -> str:
        """The call to write in C++."""
    @property
    def python(self) -> str:
        """The call to write."""

class Profile:
    """What a step does to the machine: recorded, analysed, judged."""

    @property
    def verdict(self) -> str:
        """"graph", "small gain", "leave", "graphed already" or "unknown"."""
    @property
    def headline(self) -> str:
        """"Graph it: 2.4 times as fast, 5.1 instead of 12.3 ms per iteration.\""""
    @property
    def reasons(self) -> list[str]:
        """Sentences with the numbers behind it."""
    @property
    def obstacles(self) -> list[str]:
        """What stands in the way, each with what to do."""
    @property
    def scopes(self) -> list[ScopePrediction]:
        """What each scope would bring, from the smallest to the whole iteration."""
    @property
    def best(self) -> ScopePrediction | None:
        """The one that the verdict is about."""
    @property
    def iterations(self) -> int:
        """That were found."""
    @property
    def iteration_us(self) -> float:
        """As it was recorded, which slows the host."""
    @property
    def unrecorded_us(self) -> float:
        """As pianola.profile() timed it before; of profiles that do not tell, `iteration_us`."""
    @property
    def busy_us(self) -> float:
        """Time in which the device works, per iteration."""
    @property
    def utilisation(self) -> float:
        """0 to 1."""
    @property
    def jitter(self) -> float:
        """Standard deviation of the iterations' durations over their mean."""
    @property
    def kernels(self) -> float:
        """Per iteration."""
    @property
    def launches(self) -> float:
        """Calls that launch a kernel, a graph, a copy or a memset, per iteration."""
    @property
    def own_bytes(self) -> int | None:
        """The most at a time in blocks that an iteration asked for itself; None: the profile does not say."""
    @property
    def allocated_bytes(self) -> int | None:
        """The most at a time in all blocks of the device; None: the profile does not say, or it is of the CPU."""
    @property
    def reserved_bytes(self) -> int | None:
        """The most that the allocator held of the device; None: the profile does not say, or it is of the CPU."""
    @property
    def free_bytes(self) -> int | None:
        """What the driver has left for pools and executables. Of a trace that pianola.profile() did not record, at
        most: what torch's allocator leaves of the device. None: the profile does not say."""
    @property
    def cached_bytes(self) -> int | None:
        """What torch's allocator holds unused, for inputs alone; None: the profile does not say."""
    def to_text(self, width: int = 100) -> str:
        """For people."""
    def to_json(self) -> str:
        """One JSON object."""
    def to_html(self) -> str:
        """A page with pictures that needs nothing else."""
    def __str__(self) -> str: ...

def profile(
    step: Callable[[], None],
    *,
    warmup: int,
    iterations: int,
    modules: bool,
    memory: bool,
    trace: str,
) -> Profile:
    """Runs a step a few times, and judges it."""

def load_profile(path: str, *, range: str, process: int, device: int) -> Profile:
    """Judges a profile that was recorded before."""

def version() -> str:
    """As in "0.1.0"."""

def check_internals(device: torch.device) -> list[tuple[str, str, str, bool]]:
    """What the library builds on inside torch: name, use and trouble of each, and whether it was tried."""

def runs_python_of_a_tensor() -> bool:
    """Whether an observed call runs the Python of a DTensor's operator now, on this thread."""

def resize_by_operator(storage: Any, nbytes: int, is_of_fsdp: bool) -> bool:
    """Resizes an UntypedStorage in a way that an observed call sees; False: nothing observes."""

def hide_python_files(folder: str) -> None:
    """Lines of files below `folder` are not the user's when an error names one."""

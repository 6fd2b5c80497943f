"""The keyword arguments of `graphed` and `make_graphed_callables`, for type checkers; nothing imports this at run time."""

from typing import Any, Callable, Iterable, Optional, Sequence, TypedDict, Union

import torch
from typing_extensions import Unpack

from ._load import _C

__all__ = ["CallableOptions", "GraphedOptions", "Unpack"]

Grad = Union[_C.GradPolicy, str, None]
Outputs = Union[_C.OutputPolicy, str]


class GraphedOptions(TypedDict, total=False):
    """What `graphed` takes; said there."""

    warmup: int
    capacity: int
    max_in_flight: int
    outputs: Outputs
    grad: Grad
    delay_weight_gradients: bool
    retain_graph: bool
    memory_limit: int
    plan_memory: bool
    accept_capture_path: bool
    pool: Union[_C.GraphPool, _C.GraphPoolFamily, None]
    generators: Iterable[torch.Generator]
    branches: Union[int, str]
    parallel: Optional[_C.ParallelOptions]
    islands: str
    compile: Union[bool, str]
    closeness: Optional[float]
    capture_error_mode: str
    on_fallback: Optional[Callable[[str], Any]]


class CallableOptions(TypedDict, total=False):
    """What `make_graphed_callables` takes by keyword only; said there."""

    sample_kwargs: Union[dict[str, Any], Sequence[dict[str, Any]], None]
    grad: Grad
    outputs: Outputs
    slots: int
    on_mismatch: str
    on_full: str
    schedule: Optional[_C.Schedule]
    through_autograd: Iterable[torch.Tensor]
    delay_weight_gradients: bool
    generators: Iterable[torch.Generator]
    branches: Union[int, str]
    parallel: Optional[_C.ParallelOptions]
    accept_capture_path: bool
    compile: Union[bool, str]
    closeness: Optional[float]
    retain_graph_in_backward: bool
    clone_param_grads_on_return: Optional[bool]
    pre_warmup_hook: Optional[Callable[[], Any]]
    post_warmup_hook: Optional[Callable[[], Any]]
    capture_time_hooks: Optional[Sequence[Optional[dict[str, Any]]]]
    replay_hooks: Optional[Sequence[Optional[dict[str, Any]]]]
    _order: Optional[Sequence[float]]
    _num_layers_per_chunk: Union[int, Sequence[int], None]
    _reuse_graph_input_output_buffers: bool

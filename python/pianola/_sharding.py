"""What users set of a model that fully_shard made (FSDP2), which decides what its steps do. The rest of its state is its own: when a
whole step is over, it is as before."""

from types import CodeType
from typing import Any, Iterator

import torch

# What its setters set, by class (torch 2.11).
_SETTINGS = {
    "FSDPParamGroup": ("reduce_grads", "all_reduce_grads", "reshard_after_backward", "post_forward_mesh_info", "unshard_in_backward",
                       "unshard_async_op", "gradient_divide_factor", "force_sum_reduction_for_comms", "_all_gather_comm",
                       "_reduce_scatter_comm", "_all_reduce_hook"),
    "FSDPState": ("_states_to_forward_prefetch", "_states_to_backward_prefetch"),
    "FSDPStateContext": ("is_last_backward",),
}  # fmt: skip


def is_its(value: Any) -> bool:
    """Whether it is an object that fully_shard keeps."""
    return type(value).__module__.startswith("torch.distributed.fsdp")


def is_setter(module: torch.nn.Module, code: CodeType) -> bool:
    return code.co_name.startswith("set_") and hasattr(module, "_get_fsdp_state")


def settings_of(value: Any) -> Iterator[tuple[Any, str]]:
    """(object, attribute) of one that it keeps."""
    for one in (value, getattr(value, "_state_ctx", None)):
        yield from ((one, name) for name in _SETTINGS.get(type(one).__name__, ()))


def settings_below(model: torch.nn.Module) -> Iterator[tuple[Any, str]]:
    """Of the model and all that is in it."""
    for module in model.modules():
        if hasattr(module, "_get_fsdp_state"):
            state: Any = module._get_fsdp_state()  # type: ignore[operator]
            yield from settings_of(state)
            yield from settings_of(getattr(state, "_fsdp_param_group", None))

"""`make_graphed_callables` as Transformer Engine has it: its arguments and its ways, for `pianola.compat()`."""

import warnings
from typing import Any, Callable, Optional

import torch

from ._callables import make_graphed_callables
from ._errors import refuse
from ._pass_hooks import Given
from ._patching import replacement
from ._pipeline import MicrobatchForward
from ._transformer_engine_fp8 import Quantisation

# Modules that have the name, where they are loaded.
MODULES = ("transformer_engine.pytorch", "transformer_engine.pytorch.graph")

# Old names of arguments: what they are called now.
_RENAMED = {
    "fp8_enabled": "enabled",
    "fp8_calibrating": "calibrating",
    "fp8_recipe": "recipe",
    "fp8_group": "amax_reduction_group",
    "fp8_weight_caching": "cache_quantized_params",
}


def te_make_graphed_callables(
    modules: Any,
    sample_args: Any,
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    sample_kwargs: Any = None,
    fp8_enabled: Any = None,
    fp8_calibrating: Any = None,
    fp8_recipe: Any = None,
    fp8_group: Any = None,
    fp8_weight_caching: Any = None,
    enabled: Any = None,
    calibrating: Any = None,
    recipe: Any = None,
    amax_reduction_group: Any = None,
    cache_quantized_params: Any = None,
    _order: Any = None,
    _num_layers_per_chunk: Any = None,
    pool: Any = None,
    retain_graph_in_backward: bool = False,
    _reuse_graph_input_output_buffers: bool = False,
    pre_warmup_hook: Optional[Callable[[], Any]] = None,
    post_warmup_hook: Optional[Callable[[], Any]] = None,
    clone_param_grads_on_return: bool = True,
    capture_time_hooks: Given = None,
) -> Any:
    """With its ways where they differ: modules only, gradients reach parameters through autograd, autocast's cache is refused, and
    where nothing is said of the order, a module that has been told to delay its weights' gradients does. FP8 is that of
    `pianola.fp8`: layers that `convert` made, called in its `autocast`."""
    given = dict(
        fp8_enabled=fp8_enabled, fp8_calibrating=fp8_calibrating, fp8_recipe=fp8_recipe, fp8_group=fp8_group,
        fp8_weight_caching=fp8_weight_caching,
    )  # fmt: skip
    now = dict(
        enabled=enabled, calibrating=calibrating, recipe=recipe, amax_reduction_group=amax_reduction_group,
        cache_quantized_params=cache_quantized_params,
    )  # fmt: skip
    arguments = _as_named_now(given, now)
    targets = list(modules) if isinstance(modules, (tuple, list)) else [modules]
    for target in targets:
        if not isinstance(target, torch.nn.Module):
            raise TypeError(f"Graphing for {type(target)} is not supported.")
        _refuse_stores(target)
    if torch.is_autocast_enabled() and torch.is_autocast_cache_enabled():
        refuse("make_graphed_callables does not support the autocast caching. Please set `cache_enabled=False`.")
    quantisation = Quantisation(arguments, targets)
    with quantisation.around_capture():
        graphed = make_graphed_callables(
            modules,
            sample_args,
            num_warmup_iters,
            allow_unused_input,
            pool,
            "global",
            sample_kwargs=sample_kwargs,
            retain_graph_in_backward=retain_graph_in_backward,
            clone_param_grads_on_return=clone_param_grads_on_return,
            pre_warmup_hook=pre_warmup_hook,
            post_warmup_hook=post_warmup_hook,
            capture_time_hooks=quantisation.capture_hooks(capture_time_hooks),
            accept_capture_path=True,
            delay_weight_gradients=_order is None and any(getattr(target, "delay_wgrad_compute", False) for target in targets),
            _order=_order,
            _num_layers_per_chunk=_num_layers_per_chunk,
            _reuse_graph_input_output_buffers=_reuse_graph_input_output_buffers,
        )
    results = graphed if isinstance(graphed, tuple) else (graphed,)
    quantisation.give_to(
        [(one.layer, one.forward) if isinstance(one, MicrobatchForward) else (one, replacement(one)) for one in results]
    )
    return graphed


def _as_named_now(old: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    for name, value in old.items():
        if value is None:
            continue
        if now[_RENAMED[name]] is not None:
            raise ValueError(
                f"make_graphed_callables has deprecated `{name}` kwarg in favor of `{_RENAMED[name]}`, but both kwargs are set."
            )
        warnings.warn(
            f"make_graphed_callables has deprecated `{name}` kwarg in favor of `{_RENAMED[name]}`.", DeprecationWarning, stacklevel=3
        )
        now[_RENAMED[name]] = value
    return now


def _refuse_stores(target: torch.nn.Module) -> None:
    """Of modules that keep for later what their backward has not computed: autograd does not see those gradients."""
    for name, module in target.named_modules():
        if callable(getattr(module, "backward_dw", None)) and _keeps_for_later(module):
            refuse(
                f"{name or 'the module'} ({type(module).__name__}) delays its weights' gradients by itself, in a store of its own",
                "make it without delay_wgrad_compute: Pianola delays them for any module, by entries -c-0.5 of _order",
                where=type(target).__name__,
                kind="UnsupportedError",
            )


def _keeps_for_later(module: torch.nn.Module) -> bool:
    needs = getattr(module, "need_backward_dw", None)  # since Transformer Engine 2.10
    if callable(needs):
        return bool(needs())
    return bool(getattr(module, "delay_wgrad_compute", False))

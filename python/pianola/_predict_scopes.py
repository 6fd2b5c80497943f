"""`pianola.predict_scopes`: what graphs of a step would take, by what of it is in graphs."""

import contextlib
from typing import Any, Callable, Iterable, Iterator, Optional

import torch
from torch import nn
from torch.autograd.profiler import record_function
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from ._audit.target import Batches
from ._device import Device, as_device
from ._errors import UsageError, refuse
from ._find_layers import find_layers
from ._graphed import function_of
from ._load import _C
from ._structure import tensors_of


def predict_scopes(
    step: Callable[..., Any], batches: Optional[Iterable[Any]] = None, *, device: Device = None, warmup: int = 1, lanes: int = 4
) -> "_C.ScopeForecast":
    """Runs a step, and tells what graphs of each scope would take: of the layers of its models, of forward and backward passes of whole
    models, of the iteration without its optimizer, and of all of it.

        print(pianola.predict_scopes(train_step, batches=[(x, y)]))

    Models are the modules with parameters that the step itself calls; layers are those that `graph_layers()` finds.

    Args:
        step: as for `predict_memory()`; the runs are the step's own.
        batches: the arguments of each call, in turn: tuples of arguments, dicts of keyword arguments, or single arguments. Graphs copy their
            tensors into static inputs.
        device: as for `predict_memory()`.
        warmup: runs before. What the first makes and keeps (states of optimizers) is no part of the forecast then.
        lanes: for which the bound is told; see `branches` of `Graph.capture()`.

    Returns:
        What was found: `scopes`, each with bytes and a verdict against free memory, and `lanes`; `str()` of it is the report.

    Raises:
        UsageError, DeviceError: as `predict_memory()`, or lanes is below 2.
    """
    if not callable(step):
        refuse(f"predict_scopes() was given a {type(step).__name__}, which cannot be called", "give it a function that runs one iteration")
    entries, where, function = Batches(batches), as_device(device), function_of(step)
    args, kwargs = entries.next()
    inputs = [tensor for tensor in tensors_of((args, kwargs)) if tensor.device.type == where.type]

    def run() -> None:
        with _named_parts():
            function(*args, **kwargs)

    return _C.predict_scopes(run, inputs, device=where, warmup=warmup, lanes=lanes)


@contextlib.contextmanager
def _named_parts() -> Iterator[None]:
    """While it is open, user scopes of torch name models and their layers: the library tells parts by them."""
    parts = _Parts()
    hooks = [register_module_forward_pre_hook(parts.begin), register_module_forward_hook(parts.end, always_call=True)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class _Parts:
    def __init__(self) -> None:
        self._open: list[list[record_function]] = []  # of each module whose forward pass runs
        self._models: dict[nn.Module, str] = {}
        self._parts: dict[nn.Module, str] = {}  # and the model that each is of
        self._layers: dict[nn.Module, str] = {}

    def begin(self, module: nn.Module, args: Any) -> None:
        scopes = []
        if not self._open and any(True for _ in module.parameters()):
            scopes.append(_C.model_scope(self._name_of(module)))
        if module in self._layers:
            scopes.append(_C.layer_scope(self._layers[module]))
        self._open.append([record_function(scope) for scope in scopes])
        for scope in self._open[-1]:
            scope.__enter__()

    def end(self, module: nn.Module, args: Any, result: Any) -> None:
        for scope in reversed(self._open.pop()):
            scope.__exit__(None, None, None)

    def _name_of(self, module: nn.Module) -> str:
        if module not in self._models:
            if is_recomputed() and module in self._parts:
                return self._parts[module]
            name = f"{type(module).__name__} {len(self._models) + 1}"
            self._models[module] = name
            self._parts.update({part: name for part in module.modules()})
            self._layers.update({layer: f"{name}.{inside}" for inside, layer in _layers_of(module)})
        return self._models[module]


def is_recomputed() -> bool:
    """Whether a backward pass runs on this thread: what is called now, torch.utils.checkpoint calls once more."""
    return bool(torch._C._current_graph_task_id() >= 0)


def _layers_of(model: nn.Module) -> list[tuple[str, nn.Module]]:
    if isinstance(model, torch.jit.ScriptModule):
        return []
    try:
        return find_layers(model)
    except UsageError:
        return []

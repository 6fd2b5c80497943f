"""Which modules a step calls, noted while one eager call of it runs, with copies of what they are given."""

import copy
import inspect
import threading
from types import TracebackType
from typing import Any, Callable, NamedTuple, Optional, Sequence

import torch
from torch.utils import _pytree as pytree

from ._weakly import owner_of

IMPLEMENTATION = "_compiled_call_impl"  # what Module.__call__ calls where it is set
_MOST_MODULES = 16
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def why_not(module: torch.nn.Module) -> str:
    """Why a module is left as it is; empty: it may be compiled."""
    name = type(module).__name__
    for part in module.modules():
        if hasattr(part, "_orig_mod") or part._compiled_call_impl is not None:
            return f"{name} is compiled already"
        if "forward" in part.__dict__:
            return f"the forward of {type(part).__name__} was replaced"
        if any(getattr(part, hooks, None) for hooks in _HOOKS):
            return f"{type(part).__name__} has hooks"
    if any(parameter._backward_hooks for parameter in module.parameters()):
        return f"parameters of {name} have hooks"
    return ""


class Called(NamedTuple):
    """The first call of a module by the step, with copies of its arguments."""

    module: torch.nn.Module
    arguments: Any  # (args, kwargs)
    with_gradients: bool
    autocast: Optional[torch.dtype]  # None: off
    is_forward: bool = False  # only that is called, without what Module.__call__ does around it

    @classmethod
    def now(cls, module: torch.nn.Module, args: tuple, kwargs: dict, is_forward: bool = False) -> "Called":
        """In the modes of the moment."""
        copied = pytree.tree_map_only(torch.Tensor, copy_of, (args, kwargs))
        return cls(module, copy.deepcopy(copied), torch.is_grad_enabled(), _autocast_of(module), is_forward)


class Probe:
    """Context manager: notes the outermost modules among those given, and their parts, that are called on this thread."""

    def __init__(self, roots: Sequence[torch.nn.Module]) -> None:
        self._all = {id(part): part for root in roots for part in root.modules()}
        self.refusals = {place: why_not(part) for place, part in self._all.items()}  # before it stands in their place
        self._thread = threading.get_ident()
        self._depth = 0
        self.called: dict[int, Called] = {}
        self.refusal = ""

    def __enter__(self) -> "Probe":
        for module in self._all.values():
            if module._compiled_call_impl is None:
                module.__dict__[IMPLEMENTATION] = _noting(self, module)
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        for module in self._all.values():
            if isinstance(getattr(module.__dict__.get(IMPLEMENTATION), "probe", None), Probe):
                del module.__dict__[IMPLEMENTATION]

    def call(self, module: torch.nn.Module, args: tuple, kwargs: dict) -> Any:
        if torch._C._current_graph_task_id() != -1:
            self.refusal = self.refusal or f"{type(module).__name__} is called again in the backward pass"
        if threading.get_ident() != self._thread or self._depth > 0:
            return module._call_impl(*args, **kwargs)
        if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
            self.refusal = f"{type(module).__name__} is called under hooks on saved tensors"
        if id(module) not in self.called and not self.refusal:
            self._note(module, args, kwargs)
        self._depth += 1
        try:
            result = module._call_impl(*args, **kwargs)
        finally:
            self._depth -= 1
        for tensor in tensors_in(result):
            if tensor.requires_grad and tensor.grad_fn is not None:
                tensor.register_hook(self._see_gradient)
        return result

    def _note(self, module: torch.nn.Module, args: tuple, kwargs: dict) -> None:
        if refusal := self.refusals[id(module)]:
            self.refusal = refusal
        try:
            self.called[id(module)] = Called.now(module, args, kwargs)
        except Exception as error:
            self.refusal = f"what {type(module).__name__} is given cannot be copied: {first_line(error)}"

    def _see_gradient(self, gradient: torch.Tensor) -> None:
        if torch.is_grad_enabled():
            self.refusal = "the step differentiates its gradients (create_graph=True), which compiled code cannot"


def _noting(probe: Probe, module: torch.nn.Module) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return probe.call(module, args, kwargs)

    call.probe = probe  # type: ignore[attr-defined]
    return call


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    source = tensor.detach()
    copied = source.clone()
    if copied.layout is torch.strided and copied.stride() != source.stride() and torch._debug_has_internal_overlap(source) != 1:
        copied = torch.empty_strided(source.shape, source.stride(), dtype=source.dtype, device=source.device).copy_(source)
    return copied.requires_grad_(tensor.requires_grad)


def kind_of(module: torch.nn.Module) -> str:
    return next((tensor.device.type for tensor in module.parameters()), "cpu")


def _autocast_of(module: torch.nn.Module) -> Optional[torch.dtype]:
    kind = kind_of(module)
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


def tensors_in(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def first_line(error: BaseException) -> str:
    while inner := getattr(error, "inner_exception", None) or error.__cause__:  # what dynamo wraps
        error = inner
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:200] if lines else ''}"


def modules_of(function: Any, args: tuple, kwargs: dict) -> list[torch.nn.Module]:
    """Modules that a function finds by a name, in its arguments, or in the object that it is a method of; one step further in
    plain objects, lists and dicts."""
    owner = owner_of(function)
    function = inspect.unwrap(getattr(function, "__func__", function))
    code = getattr(function, "__code__", None)
    values = [*args, *kwargs.values(), owner]
    for cell in getattr(function, "__closure__", None) or ():
        try:
            values.append(cell.cell_contents)
        except ValueError:  # not filled yet
            pass
    if code is not None:
        values += [function.__globals__[name] for name in code.co_names if name in function.__globals__]
    found: dict[int, torch.nn.Module] = {}
    for value in values:
        for one in (value, *_held_by(value)):
            if isinstance(one, torch.nn.Module):
                found[id(one)] = one
    parts = {id(part) for one in found.values() for part in one.modules() if part is not one}
    return [one for one in found.values() if id(one) not in parts]


def _held_by(value: Any) -> Sequence[Any]:
    most = 1000
    if isinstance(value, (list, tuple)):
        return value[:most]
    if isinstance(value, dict):
        return list(value.values())[:most]
    if isinstance(value, (torch.nn.Module, torch.Tensor, type)) or type(value).__module__ == "builtins":
        return ()
    held = getattr(value, "__dict__", None)
    return list(held.values())[:most] if isinstance(held, dict) else ()


def too_many(count: int) -> str:
    return f"it calls {count} modules by themselves, more than {_MOST_MODULES}" if count > _MOST_MODULES else ""

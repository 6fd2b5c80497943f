"""Modules that a step calls, compiled by Inductor while it runs; and how far that is from eager.

The step itself is never run twice. One eager call of it notes which modules it calls, with copies of what they are given; the
comparison is made behind that call, on copies of the modules.
"""

import contextlib
import copy
import functools
import inspect
import logging
import math
import threading
from types import FunctionType, SimpleNamespace, TracebackType
from typing import Any, Callable, Iterable, Iterator, NamedTuple, Optional, Sequence

import torch
from torch._dynamo.exc import TorchDynamoException, Unsupported
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ._weakly import owner_of

_MOST_MODULES = 16
_IMPLEMENTATION = "_compiled_call_impl"  # what Module.__call__ calls where it is set
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
                module.__dict__[_IMPLEMENTATION] = _noting(self, module)
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        for module in self._all.values():
            if isinstance(getattr(module.__dict__.get(_IMPLEMENTATION), "probe", None), Probe):
                del module.__dict__[_IMPLEMENTATION]

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


def _kind_of(module: torch.nn.Module) -> str:
    return next((tensor.device.type for tensor in module.parameters()), "cpu")


def _autocast_of(module: torch.nn.Module) -> Optional[torch.dtype]:
    kind = _kind_of(module)
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


def tensors_in(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def first_line(error: BaseException) -> str:
    while inner := getattr(error, "inner_exception", None) or error.__cause__:  # what dynamo wraps
        error = inner
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:200] if lines else ''}"


# --- The comparison ---


class Comparison(NamedTuple):
    """Of a compiled module with eager."""

    apart: Optional[float] = None  # as a share of the largest value; None: not compared
    draws: bool = False
    failure: str = ""
    writes_more: bool = False  # than its buffers, of what it holds

    def told(self) -> str:
        if self.apart is None:
            return "not compared with eager, as it draws random numbers" if self.draws else "not compared with eager"
        drawn = ", but for what draws random numbers" if self.draws else ""
        return "bit-equal to eager" + drawn if self.apart == 0 else f"at most {self.apart:.2g} of the largest value away from eager{drawn}"


def compare_all(called: Iterable[Called], closeness: Optional[float], generators: Sequence[torch.Generator]) -> Comparison:
    """Of all modules that are called. What is farther away than `closeness`, or cannot be compared where there is one, is a failure."""
    apart, draws, writes_more = None, False, False
    for one in called:
        found = compare(one, generators)
        if found.failure:
            return found
        name = type(one.module).__name__
        draws, writes_more = draws or found.draws, writes_more or found.writes_more
        if found.apart is not None:
            apart = max(found.apart, apart or 0.0)
        if closeness is not None and found.apart is None:
            why = "as it draws random numbers" if found.draws else "as its results hold no tensors that are found"
            return Comparison(failure=f"{name} cannot be compared with eager, {why}, and a closeness was asked for")
        if closeness is not None and found.apart is not None and not found.apart <= closeness:
            return Comparison(failure=f"{name} is {found.apart:.2g} of the largest value away from eager, and the closeness is {closeness:.2g}")
    return Comparison(apart, draws, writes_more=writes_more)


def compare(called: Called, generators: Sequence[torch.Generator]) -> Comparison:
    """Results and gradients of one call, on copies: nothing of the user's is written."""
    name = type(called.module).__name__
    try:
        plain = copy.deepcopy(called.module)
    except Exception as error:
        return Comparison(failure=f"{name} cannot be copied: {first_line(error)}")
    try:
        with random_states_kept(plain, generators):
            before = _random_state(plain)
            with _Writes(plain) as writes:
                wanted = run(plain, plain.forward if called.is_forward else plain, called)
            draws = any(not torch.equal(a, b) for a, b in zip(before, _random_state(plain)))
            fresh = copy.deepcopy(called.module)
            with logs_ignored():
                found = run(fresh, compiled(fresh, called.is_forward), called)
    except Exception as error:  # the compiler, what it needs, or memory
        return Comparison(failure=first_line(error))
    if draws or not any(wanted):
        return Comparison(draws=draws, writes_more=writes.more)
    return Comparison(apart=max(_difference(one, other) for one, other in zip(wanted, found)), writes_more=writes.more)


_NO_SCHEMA = SimpleNamespace(arguments=())  # of operators that take functions, and write nothing themselves


class _Writes(TorchDispatchMode):
    """Sees what a copy of a module writes. What it writes that is no part of it, and is no copy therefore, is refused."""

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Else dynamo gives up functions for good that a module compiles by itself, as flex_attention does."""
        return True

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._name = type(module).__name__
        self._buffers = {_memory(one) for one in module.buffers()}
        parts = [value for part in module.modules() for value in vars(part).values() if isinstance(value, torch.Tensor)]
        self._others = {_memory(one) for one in [*module.parameters(), *parts]} - self._buffers
        self._own: set[int] = set()  # made meanwhile
        self._places: list[StorageWeakRef] = []  # of those: no other memory takes them, and none is held
        self.more = False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Optional[dict] = None) -> Any:
        given = {_memory(one) for one in tensors_in((args, kwargs))}
        arguments = getattr(func, "_schema", _NO_SCHEMA).arguments
        passed = {**dict(zip((argument.name for argument in arguments), args)), **(kwargs or {})}
        for argument in arguments:
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            for tensor in tensors_in(passed.get(argument.name)):
                self._note(_memory(tensor))
        result = func(*args, **(kwargs or {}))
        for tensor in tensors_in(result):
            if _memory(tensor) not in given:
                self._own.add(_memory(tensor))
                self._places.append(StorageWeakRef(tensor.untyped_storage()))
        return result

    def _note(self, memory: int) -> None:
        if memory in self._others:
            self.more = True
        elif memory not in self._buffers and memory not in self._own:
            raise RuntimeError(f"{self._name} writes a tensor that is none of its parameters, buffers and attributes")


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else id(tensor)


@contextlib.contextmanager
def random_states_kept(module: torch.nn.Module, generators: Sequence[torch.Generator]) -> Iterator[None]:
    """Those of torch and of these generators are as they were, behind it."""
    states = [generator.get_state() for generator in generators]
    try:
        with torch.random.fork_rng(devices=_devices_of(module)):
            yield
    finally:
        for generator, state in zip(generators, states):
            generator.set_state(state)


def _devices_of(module: torch.nn.Module) -> list[torch.device]:
    return list({tensor.device: None for tensor in module.parameters() if tensor.is_cuda})


def _random_state(module: torch.nn.Module) -> list[torch.Tensor]:
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in _devices_of(module))]


def run(module: torch.nn.Module, function: Callable[..., Any], called: Called) -> tuple[list[torch.Tensor], ...]:
    """Results, gradients and buffers of a call."""
    args, kwargs = pytree.tree_map_only(torch.Tensor, copy_of, copy.deepcopy(called.arguments))
    autocast = torch.autocast(_kind_of(module), dtype=called.autocast, enabled=called.autocast is not None)
    with torch.set_grad_enabled(called.with_gradients), autocast:
        results = tensors_in(function(*args, **kwargs))
    asked = [one for one in [*module.parameters(), *tensors_in((args, kwargs))] if one.requires_grad]
    outputs = [one for one in results if one.requires_grad and (one.is_floating_point() or one.is_complex())]
    gradients: Sequence[Optional[torch.Tensor]] = ()
    if outputs and asked:
        weights = [torch.arange(one.numel(), device=one.device).cos().to(one.dtype).reshape(one.shape) for one in outputs]
        gradients = torch.autograd.grad(outputs, asked, weights, allow_unused=True)
    buffers = [buffer for buffer in module.buffers() if buffer.is_floating_point()] if results else []
    return tuple([one.detach() for one in group if one is not None] for group in (results, gradients, buffers))


def _difference(some: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> float:
    """The largest, as a share of the largest value of all: a gradient that is zero but for rounding is no measure."""
    if len(some) != len(others):
        return math.inf
    pairs = [_apart(one, other) for one, other in zip(some, others)]
    apart, scale = max((pair[0] for pair in pairs), default=0.0), max((pair[1] for pair in pairs), default=0.0)
    return 0.0 if apart == 0 else apart / scale if scale > 0 else math.inf


def _apart(one: torch.Tensor, other: torch.Tensor) -> tuple[float, float]:
    """The largest difference, and the largest value."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return math.inf, 0.0
    wide = torch.complex128 if one.is_complex() else torch.float64
    one, other = one.to(wide), other.to(wide)
    finite = one.isfinite()
    odd, others = one[~finite], other[~other.isfinite()]
    if not torch.equal(finite, other.isfinite()) or not bool(((odd == others) | (odd.isnan() & others.isnan())).all()):
        return math.inf, 0.0
    one, other = one[finite], other[finite]
    return (0.0, 0.0) if one.numel() == 0 else ((one - other).abs().max().item(), one.abs().max().item())


# --- Compiled ---


def compiled(module: torch.nn.Module, is_forward: bool = False) -> Callable[..., Any]:
    """Its call, or its forward alone, compiled as a whole, for each shape by itself: where it cannot be, nothing of it has run."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return module.forward(*args, **kwargs) if is_forward else module._call_impl(*args, **kwargs)

    # Dynamo takes no frame of torch's own modules by itself, and counts what it has compiled by code object: each module needs one.
    code = call.__code__.replace(co_name=f"call_{type(module).__name__}")
    function = FunctionType(code, call.__globals__, code.co_name, None, call.__closure__)
    return torch.compile(function, dynamic=False, fullgraph=True)


class SharedPatch:
    """A setting of torch's for the whole process that is another one while somebody is within, on any thread.

    Args:
        patch: makes torch's own context manager for it.
    """

    def __init__(self, patch: Callable[[], Any]) -> None:
        self._patch = patch
        self._lock = threading.Lock()
        self._inside = 0
        self._context: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._context = self._patch()
                self._context.__enter__()
            self._inside += 1

    def __exit__(self, *raised: Any) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._context.__exit__(*raised)


def logs_ignored() -> SharedPatch:
    """Context manager: what is compiled within does not log, and is whole, therefore. A replay does not log either."""
    return _logs_ignored


def _patch_of_logs() -> Any:
    users = frozenset(iter(torch._dynamo.config.ignore_logging_functions))
    return torch._dynamo.config.patch(ignore_logging_functions=_ignored(users, _methods_that_log()))


_logs_ignored = SharedPatch(_patch_of_logs)


class _Ignored(set[Callable[..., Any]]):
    """Functions that dynamo takes for nothing: the user's, and methods of loggers."""

    def __init__(self, users: frozenset[Callable[..., Any]], methods: frozenset[Callable[..., Any]]) -> None:
        super().__init__(users | methods)
        self._users = users

    def __iter__(self) -> Iterator[Callable[..., Any]]:
        return iter(self._users)  # torch sorts what it finds, for its statistics, and functions have no order

    def __deepcopy__(self, known: dict[int, Any]) -> "_Ignored":
        return self


_ignored = functools.lru_cache(_Ignored)  # one object, or torch takes its settings for changed


def _methods_that_log() -> frozenset[Callable[..., Any]]:
    """Of all loggers, those that libraries have added included."""
    own = [getattr(logging.Logger, name) for name in ("debug", "info", "warning", "error", "critical", "exception", "log")]
    added = [value for value in vars(logging.Logger).values() if callable(value) and getattr(value, "__module__", "") != "logging"]
    return frozenset(own + added)


class CompiledModules:
    """Context manager: within, the modules are called as compiled, on the threads that have entered."""

    def __init__(self, modules: Sequence[torch.nn.Module]) -> None:
        self._calls = {module: compiled(module) for module in modules}
        self._lock = threading.Lock()
        self._threads: list[int] = []
        self._before: dict[torch.nn.Module, Any] = {}
        self.failure = ""  # why they are called as they are from now on

    def __enter__(self) -> None:
        with self._lock:
            if not self._threads:
                self._before = {module: module.__dict__.get(_IMPLEMENTATION) for module in self._calls}
                for module, call in self._calls.items():
                    module.__dict__[_IMPLEMENTATION] = self._instead_of(module, call)
            self._threads.append(threading.get_ident())

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        with self._lock:
            self._threads.remove(threading.get_ident())
            if self._threads:
                return
            for module, before in self._before.items():
                module.__dict__.pop(_IMPLEMENTATION, None)
                if before is not None:
                    module.__dict__[_IMPLEMENTATION] = before

    def _instead_of(self, module: torch.nn.Module, compiled_call: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self.failure or threading.get_ident() not in self._threads:
                return module._call_impl(*args, **kwargs)
            try:
                try:
                    return compiled_call(*args, **kwargs)
                except Unsupported:  # nothing has run; a new shape, where it may be a log that stands in the way
                    with logs_ignored():
                        return compiled_call(*args, **kwargs)
            except TorchDynamoException as error:
                self.failure = first_line(error)
                return module._call_impl(*args, **kwargs)

        return call

    def names(self) -> str:
        return ", ".join(type(module).__name__ for module in self._calls)

    def device(self) -> torch.device:
        return next((tensor.device for module in self._calls for tensor in module.parameters()), torch.device("cpu"))


# --- Which ---


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

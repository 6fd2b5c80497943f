"""How far a compiled module is from eager: results and gradients of one call, both on copies of the module."""

import contextlib
import copy
import math
from types import SimpleNamespace
from typing import Any, Callable, Iterable, Iterator, NamedTuple, Optional, Sequence

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ._called_modules import Called, copy_of, first_line, kind_of, tensors_in
from ._compiled_modules import compiled
from ._ignored_logs import logs_ignored


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
    autocast = torch.autocast(kind_of(module), dtype=called.autocast, enabled=called.autocast is not None)
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

"""Parts of a graphed function that the host runs again at each replay: steps of optimizers and of learning-rate schedulers, what
gradient scalers do, and methods that count.

What an optimizer gives to its kernels (rates, bias corrections) Python computes anew in each step, and a scheduler sets rates. A
graph would repeat the numbers of its capture. So a replay calls `scheduler.step()`, and where its numbers change
`optimizer.step()`, too: operations on the device are recognised and not made, the numbers that they were given go into the graph.
So it does with `ema.update(model)`, where the average counts its updates.
A scaler's `step()` reads whether gradients have overflowed: the graph is replayed up to there, and the rest as that says.
"""

import contextlib
import functools
import os
import sys
import threading
import weakref
from typing import Any, Callable, Iterator, Optional, Sequence

import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim import lr_scheduler, swa_utils
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from . import _counting_methods
from ._decisions import Conditional, Decision, Decisions
from ._host_places import SIMPLE
from ._host_saves import OWNERS, containers, save
from ._load import _C
from ._modes import as_in, modes
from ._replaced import Replaced

# Whose step replays run again.
_active: "weakref.WeakSet[torch.optim.Optimizer]" = weakref.WeakSet()
_schedulers: "weakref.WeakSet[lr_scheduler.LRScheduler]" = weakref.WeakSet()

_SCHEDULERS = [
    kind
    for kind in vars(lr_scheduler).values()
    if isinstance(kind, type) and issubclass(kind, lr_scheduler.LRScheduler) and "step" in vars(kind)
    if kind is not lr_scheduler.ReduceLROnPlateau  # which reads what it is given
]


class _Part:
    """A part that runs now on this thread."""

    def __init__(self, owner: Optional[torch.optim.Optimizer], active: bool, depth: int = 0) -> None:
        self.owner = owner  # None: it is none that ends by the hook of a step
        self.active = active
        self.depth = depth  # how many parts were open


class _Here(threading.local):
    def __init__(self) -> None:
        self.parts: list[_Part] = []
        self.decisions: Optional[Decisions] = None  # of the captured run
        self.device = "cpu"  # the type of device that the step computes on which is watched
        self.ran: list[list[Any]] = []  # in that step: parts that replays run again, with what they work on


_here = _Here()


def is_active(optimizer: torch.optim.Optimizer) -> bool:
    """Whether replays run its step again, so that nothing that it reads need be as it was. One that has a scheduler will get
    other rates, if not in the first calls."""
    if optimizer not in _active and any("initial_lr" in group for group in optimizer.param_groups):
        activate(optimizer)
    return optimizer in _active


def is_part(one: Any) -> bool:
    """The same of an optimizer, a scheduler or anything else."""
    if isinstance(one, torch.optim.Optimizer):
        return is_active(one)
    return isinstance(one, lr_scheduler.LRScheduler) and one in _schedulers


def _is_scaler(one: Any) -> bool:
    """Whether it is a scaler whose methods replays run again."""
    return isinstance(one, GradScaler) and one._enabled and one._device in ("cpu", "cuda")


def left_to_replays(one: Any) -> Sequence[str]:
    """Attributes of a scaler that need not be compared: what it notes in a step and forgets by its end, and what it began with."""
    if not _is_scaler(one):
        return ()
    began_with = ("_init_scale", "_init_growth_tracker") if one._scale is not None else ()
    return ("_per_optimizer_states", *began_with)


def activate(optimizer: torch.optim.Optimizer) -> None:
    _active.add(optimizer)


def may_be_activated(optimizer: torch.optim.Optimizer) -> bool:
    return not is_active(optimizer)


def runs_again() -> bool:
    """Whether what runs now on this thread is in a part that replays run again."""
    return any(part.active for part in _here.parts)


def is_open() -> bool:
    """Whether what runs now on this thread is in a step of an optimizer or a scheduler."""
    return bool(_here.parts)


def looked_at() -> Optional[torch.optim.Optimizer]:
    """Whose step runs now on this thread, if it is a part that is only looked at so far."""
    return next((part.owner for part in _here.parts if part.owner is not None), None)


class _Watched(Replaced):
    """While a step runs that is watched: steps of schedulers are parts, and what scalers do."""

    def __enter__(self) -> None:
        _here.parts.clear()  # a step before it may have been left by an exception
        super().__enter__()


def _scheduler_part(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def step(self: lr_scheduler.LRScheduler, *args: Any, **kwargs: Any) -> Any:
        if not _C.host_parts_are_watched() or runs_again():
            return original(self, *args, **kwargs)
        _schedulers.add(self)
        activate(self.optimizer)
        decision = None if _here.decisions is None else _here.decisions.decision_at(sys._getframe(1))
        return _as_part(original, self, args, kwargs, [], _device_of(self.optimizer), decision=decision)

    return step


def _scaler_part(original: Callable[..., Any], reads: str = "") -> Callable[..., Any]:
    """unscale_(optimizer), step(optimizer) or update(); a step reads whether gradients have overflowed."""

    @functools.wraps(original)
    def part(self: GradScaler, *args: Any, **kwargs: Any) -> Any:
        if not _C.host_parts_are_watched() or runs_again() or not _is_scaler(self):
            return original(self, *args, **kwargs)
        parameters: list[torch.Tensor] = []
        device = torch.device(self._device) if self._scale is None else self._scale.device
        for one in (*args, *kwargs.values()):
            if isinstance(one, torch.optim.Optimizer):
                activate(one)
                parameters += _parameters_of(one)
                device = _device_of(one)
        return _as_part(original, self, args, kwargs, parameters, device, reads)

    return part


def _method_part(original: Callable[..., Any]) -> Callable[..., Any]:
    """A method that counts on the host; see _counting_methods."""

    @functools.wraps(original)
    def part(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = [*args, *kwargs.values()]
        if not _C.host_parts_are_watched() or is_open() or not _counting_methods.can_run_again(self, given):
            return original(self, *args, **kwargs)
        reads = "values" if _may_run_twice(self) else ""
        return _as_part(original, self, args, kwargs, [], torch.device(_here.device), reads)

    return part


def _as_part(
    original: Callable[..., Any],
    owner: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    parameters: list[torch.Tensor],
    device: torch.device,
    reads: str = "",
    decision: Optional[Decision] = None,
) -> Any:
    """Makes the call of a method, as a part that replays make again: where a decision hangs on it, when they are over."""
    held = [_held(owner, True), *map(_held, args)], {name: _held(one) for name, one in kwargs.items()}
    run: Callable[[], Any] = functools.partial(_again, modes(), original, *held)
    saved = functools.partial(save, [owner, *args, *kwargs.values()])
    if decision is not None:
        step = Conditional(run, saved())
        decision.steps.append(step)
        run, saved = _nothing, functools.partial(_same, step.take_back)
    elif _here.decisions is not None:
        _here.decisions.note_part()
    open_before = len(_here.parts)
    _here.parts.append(_Part(None, True))
    hooks = _hooks_of(args, kwargs) if reads and _C.is_recording() else []
    twice = decision is None and all(map(_may_run_twice, (owner, *args, *kwargs.values())))
    depth = _C.begin_host_part(run, None, parameters, device, reads, saved, bool(hooks), twice)
    try:
        for one, _ in hooks:
            one.clear()
        return original(owner, *args, **kwargs)
    finally:
        for one, entries in hooks:
            one.update(entries)
        del _here.parts[open_before:]
        if not is_open():
            _here.ran.append([owner, *args, *kwargs.values()])
        if _C.end_host_part(depth):
            _counting_methods.forget(original)


# Without functions of the user's.
_PLAIN_SCHEDULERS = (
    lr_scheduler.StepLR,
    lr_scheduler.MultiStepLR,
    lr_scheduler.ConstantLR,
    lr_scheduler.LinearLR,
    lr_scheduler.ExponentialLR,
    lr_scheduler.PolynomialLR,
    lr_scheduler.CosineAnnealingLR,
    lr_scheduler.CosineAnnealingWarmRestarts,
    lr_scheduler.OneCycleLR,
    swa_utils.SWALR,
)


def _has_users_functions(one: Any) -> bool:
    if isinstance(one, torch.optim.Optimizer):
        return bool(one._optimizer_step_pre_hooks or one._optimizer_step_post_hooks)
    if not isinstance(one, swa_utils.AveragedModel):
        return False
    functions = (one.avg_fn, one.multi_avg_fn)
    return not all(function is None or function.__module__ == swa_utils.__name__ for function in functions)


def _may_run_twice(one: Any) -> bool:
    """Whether all that its method does on the host is put back where a capture is taken back: it is torch's own, and calls nothing
    of the user's."""
    if isinstance(one, (torch.optim.Optimizer, swa_utils.AveragedModel)):
        return type(one).__module__.split(".")[:2] == ["torch", "optim"] and not _has_users_functions(one)
    if isinstance(one, (torch.nn.Module, torch.Tensor)):
        return True  # what is worked on
    return type(one) in (*_PLAIN_SCHEDULERS, GradScaler, *SIMPLE)


def _hooks_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[dict, dict]]:
    """Those of optimizers, which do what nobody can take back: a captured step, which may turn out to be left out, is made
    without them. Each with its entries."""
    optimizers = [one for one in (*args, *kwargs.values()) if isinstance(one, torch.optim.Optimizer)]
    hooks = (one for each in optimizers for one in (each._optimizer_step_pre_hooks, each._optimizer_step_post_hooks))
    return [(one, dict(one)) for one in hooks if one]


_watched = _Watched(
    [
        *((kind, "step", _scheduler_part) for kind in _SCHEDULERS),
        (GradScaler, "unscale_", _scaler_part),
        (GradScaler, "step", functools.partial(_scaler_part, reads="overflow")),
        (GradScaler, "update", _scaler_part),
    ]
)


_lock = threading.Lock()
_methods: dict[tuple[type, str], Replaced] = {}  # while they are replaced


@contextlib.contextmanager
def _with_methods() -> Iterator[None]:
    """Parts stand in for the methods that count, as far as they are known now."""
    with _lock:
        mine = {key: _methods.setdefault(key, Replaced([(*key, _method_part)])) for key in _counting_methods.methods()}
        for one in mine.values():
            one.__enter__()
    try:
        yield
    finally:
        with _lock:
            for key, one in mine.items():
                one.__exit__()
                if not one.is_open:
                    _methods.pop(key, None)


@contextlib.contextmanager
def watched(device: str) -> Iterator[None]:
    """While it is entered, a step runs that is watched.

    Args:
        device: the type of device that it computes on.
    """
    _here.device = device
    outer, _here.ran = _here.ran, []
    try:
        with _watched, _with_methods():
            yield
    finally:
        _here.ran = outer


def have_run() -> bool:
    """Whether parts that replays run again have run in the step that is watched."""
    return bool(_here.ran)


def touched() -> set[int]:
    """Objects and containers where these may have written, by id."""
    owners = [one for part in _here.ran for one in part]
    return {*map(id, owners), *(key for part in _here.ran for key in containers(part))}


def kept_by_parts() -> set[int]:
    """Objects whose methods these are, and containers that they keep things in, by id: what a step stores there a part may use."""
    return {key for part in _here.ran for key in (id(part[0]), *containers(part))}


def run_users_code() -> bool:
    """Whether one of these may use whatever the step stores anywhere."""
    owners = [part[0] for part in _here.ran]
    return any(not type(one).__module__.startswith("torch.") or _has_users_functions(one) for one in owners)


def _parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _device_of(optimizer: torch.optim.Optimizer) -> torch.device:
    """Whose graph holds its operations."""
    devices = [parameter.device for parameter in _parameters_of(optimizer)]
    return next((device for device in devices if device.type == "cuda"), torch.device("cpu"))


def _begin(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if not _C.host_parts_are_watched():
        return
    active = is_active(optimizer)
    takes_closure = any(one is not None for one in (*args[1:], *kwargs.values()))
    if takes_closure:
        _here.parts.append(_Part(None, False))
        return
    if _here.decisions is not None:
        _here.decisions.note_part()
    reference = _held(optimizer)
    run = functools.partial(_again, modes(), type(optimizer).step, [reference], {}) if active else None
    activate_it, saved = functools.partial(_activate, reference), functools.partial(save, [optimizer])
    twice = _may_run_twice(optimizer)
    reads, parameters = "values" if twice else "", _parameters_of(optimizer)
    adam = optimizer if active and _is_plain_adam(optimizer) else None
    depth = _C.begin_host_part(
        run, activate_it, parameters, _device_of(optimizer), reads, saved, may_run_twice=twice, adam=adam
    )
    _here.parts.append(_Part(optimizer, active, depth))


def _is_plain_adam(optimizer: torch.optim.Optimizer) -> bool:
    """Whether what its step does on the host is known: it is torch's, in nothing but torch's own wrappers."""
    if type(optimizer) not in (torch.optim.Adam, torch.optim.AdamW) or _has_users_functions(optimizer):
        return False
    step: Any = type(optimizer).step
    while step is not None:
        code = getattr(step, "__code__", None)
        if code is None or os.path.dirname(code.co_filename) != os.path.dirname(torch.optim.__file__):
            return False
        step = getattr(step, "__wrapped__", None)
    return True


def _end(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if not _C.host_parts_are_watched() or not _here.parts:
        return
    part = _here.parts.pop()
    if part.owner is not None:
        if part.active and not is_open():
            _here.ran.append([optimizer])
        _C.end_host_part(part.depth)


def _nothing() -> None:
    pass


def _same(value: Any) -> Any:
    return value


def deciding(decisions: Optional[Decisions]) -> Optional[Decisions]:
    """From now on the decisions of this thread's captured run. Returns those before."""
    before, _here.decisions = _here.decisions, decisions
    return before


def _held(value: Any, is_owner: bool = False) -> Callable[[], Any]:
    """For a graph to hold: the function that is graphed holds its optimizers and the like."""
    is_held = is_owner or isinstance(value, (*OWNERS, torch.nn.Module, torch.nn.Parameter))
    return weakref.ref(value) if is_held else lambda: value


def _again(
    ambient: tuple, step: Callable[..., Any], args: list[Callable[[], Any]], kwargs: dict[str, Callable[[], Any]]
) -> None:
    with as_in(ambient):
        step(*(one() for one in args), **{name: one() for name, one in kwargs.items()})


def _activate(reference: Callable[[], Any]) -> None:
    optimizer = reference()
    if optimizer is not None:
        _active.add(optimizer)


register_optimizer_step_pre_hook(_begin)
register_optimizer_step_post_hook(_end)

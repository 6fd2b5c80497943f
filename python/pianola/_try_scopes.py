"""`pianola.try_scopes`: a step with graphs of each scope, tried, timed and compared with eager."""

import dataclasses
import random
import sys
import time
from typing import Any, Callable, Iterable, Optional

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils import _pytree as pytree

from ._audit.target import Batches
from ._errors import CaptureError, UnsupportedError, UsageError, refuse
from ._find_layers import find_layers
from ._graphed import GraphedFunction, graphed
from ._layers import graph_layers
from ._load import _C
from ._patching import replacement
from ._predict_scopes import is_recomputed, predict_scopes
from ._structure import tensors_of
from ._verify import comparable

Step = Callable[..., Any]

_SETTLING = 12  # calls after which graphs are there, or will not come
_MOST_SETTLING = 80  # where parts of the step are being found that stay eager
_PARTS = 4  # of the calls that are timed; the fastest counts
_WORTH = 0.98  # of eager's time: what is slower is not worth a graph
_AS_FAST = 1.03  # of the fastest: then the larger scope is taken

_PREDICTED = {"layers": "each layer", "model": "forward and backward", "iteration": "whole iteration"}  # in predict_scopes()

_WRITE = {
    "layers": "pianola.graph_layers({models})",
    "model": "pianola.graphed({models})",
    "iteration": "step = pianola.graphed(step)",
}


@dataclasses.dataclass
class Trial:
    """A step with graphs of a scope."""

    scope: str
    ms: float = 0.0  # per call
    replays: int = 0
    is_equal: bool = True  # results, parameters and buffers are eager's, bit for bit
    is_tried: bool = True  # False: its graphs would not fit into the GPU's memory
    reason: str = ""  # why nothing, or not all, is replayed
    write: str = ""  # the call that makes it so
    memory: Optional["_C.PredictedScope"] = None  # what its graphs take, told before; None: of eager, and where it cannot be told


class TriedScopes:
    """What came of it; the report when printed."""

    def __init__(self, subject: str, device: str, calls: int, trials: list[Trial], forecast: Optional["_C.ScopeForecast"] = None) -> None:
        self.trials = trials
        self._subject, self._device, self._calls, self._forecast = subject, device, calls, forecast

    @property
    def chosen(self) -> Optional[Trial]:
        """The largest scope that is as fast as the fastest, and equal to eager; None where no graph pays."""
        eager, *others = self.trials
        good = [one for one in others if one.replays and one.is_equal and one.ms < _WORTH * eager.ms]
        fastest = min((one.ms for one in good), default=0.0)
        return next((one for one in reversed(good) if one.ms <= _AS_FAST * fastest), None)

    def report(self) -> "_C.Report":
        eager, chosen = self.trials[0], self.chosen
        report = _C.Report(f"Graphs of {self._subject}, scope by scope")
        report.fact("device", "device", self._device).fact("calls", "calls of each", self._calls)
        report.fact("chosen", "take", chosen.scope if chosen else "none: no graph is 2 % faster than eager")
        if chosen is not None:
            report.fact("write", "write", chosen.write)
        if self._forecast is not None:
            report.fact("free_bytes", "left to the driver", self._forecast.free_bytes, "bytes")
        report.list("reasons", "What stays eager", [f"{one.scope}: {one.reason}" for one in self.trials if one.reason])
        verdicts = [f"{one.scope}: {one.memory.verdict}" for one in self.trials if one.memory is not None and one.memory.fits]
        report.list("memory_verdicts", "Whether it fits", verdicts)
        rows = [
            [one.scope, one.ms, eager.ms / one.ms, one.replays if one is not eager else None, _in_words(one, eager), *_memory_of(one)]
            if one.is_tried
            else [one.scope, None, None, None, "not tried", *_memory_of(one)]
            for one in self.trials
        ]
        columns = [("scope", "scope", "", 0), ("ms", "ms/call", "", 3), ("speed_up", "speed-up", "", 2),
                   ("replays", "replays", "", 0), ("equal", "like eager", "", 0), ("pool_bytes", "pool", "bytes", 0),
                   ("executable_bytes", "executables", "bytes", 0), ("fits", "fits", "", 0)]  # fmt: skip
        return report.table("trials", "", columns, rows)

    def to_text(self) -> str:
        """For people."""
        return self.report().to_text()

    def to_json(self) -> str:
        """For programs."""
        return self.report().to_json()

    __str__ = to_text


def _in_words(one: Trial, eager: Trial) -> str:
    if one is eager:
        return ""
    return "bit-equal" if one.is_equal else "NO"


def _memory_of(one: Trial) -> list[Any]:
    if one.memory is None:
        return [None, None, None]
    fits = None if one.memory.fits is None else "yes" if one.memory.fits else "no"
    return [one.memory.pool_bytes, one.memory.executable_bytes, fits]


def try_scopes(make_step: Callable[[], Any], *, batches: Optional[Iterable[Any]] = None, iterations: int = 20) -> TriedScopes:
    """Tries graphs of each scope on a training or inference step: of the layers of its models, of whole models (forward and backward
    passes), and of the iteration. Times them, compares what they leave behind with eager, bit by bit, and says which to take, and what
    memory its graphs take beside what the GPU has left.

        def make_step():
            model = Model()
            ...
            return step

        print(pianola.try_scopes(make_step, batches=[(x, y)]))

    Args:
        make_step: makes models and optimizers anew, and returns the step; called once for each scope, with the same seeds, and once
            before, for `predict_scopes()`: scopes whose graphs would not fit are not tried.
        batches: arguments of the step, call by call, in turn: tuples of arguments, dicts of keyword arguments, or one argument each.
        iterations: calls that are timed.

    Raises:
        UsageError: an option is out of range, or make_step returns no step. What the step raises comes out.
    """
    if iterations < 1:
        refuse(f"iterations must be 1 or more, got {iterations}")
    entries = list(batches) if batches is not None else None
    forecast = _forecast(make_step, entries)
    tries = [_Try(scope, make_step, entries, iterations) for scope in ("eager", *_WRITE)]
    for one in tries:
        one.trial.memory = _told_of(one.trial.scope, forecast)
        if one.trial.memory is not None and one.trial.memory.fits is False:
            one.trial.is_tried, one.trial.reason = False, one.trial.memory.verdict
    made = [one for one in tries if one.trial.is_tried]
    settling = made[-1].run(_SETTLING, _MOST_SETTLING)  # all make the same calls
    for one in made[:-1]:
        one.run(settling, settling)
    eager = tries[0]
    for one in made:
        one.trial.is_equal = _are_equal(one.seen, eager.seen)
    return TriedScopes(eager.name, eager.device, settling + iterations, [one.trial for one in tries], forecast)


def _forecast(make_step: Callable[[], Any], batches: Optional[list[Any]]) -> Optional["_C.ScopeForecast"]:
    """What graphs of each scope would take; None where that cannot be told."""
    step = make_step()
    if not callable(step):
        return None  # which the first trial refuses
    try:
        return predict_scopes(step, batches, device=_device_of(step, batches))
    except (UnsupportedError, CaptureError):  # an allocator that does not tell what it hands out; what cannot be observed
        return None


def _device_of(step: Step, batches: Optional[list[Any]]) -> Optional[torch.device]:
    """Where it computes: that of its batches or, where those come from the host, of the modules that it calls. None where neither tells."""
    devices = {tensor.device for tensor in tensors_of(batches)}
    if torch.cuda.is_available() and not any(device.type == "cuda" for device in devices):

        def look(module: nn.Module, args: Any) -> None:
            devices.update(parameter.device for parameter in module.parameters(recurse=False))

        hook = register_module_forward_pre_hook(look)
        try:
            args, kwargs = Batches(batches).next()
            step(*args, **kwargs)
        finally:
            hook.remove()
    return next((device for device in devices if device.type != "cpu"), next(iter(devices), None))


def _told_of(scope: str, forecast: Optional["_C.ScopeForecast"]) -> Optional["_C.PredictedScope"]:
    if forecast is None or scope not in _PREDICTED:
        return None
    told = next(one for one in forecast.scopes if one.name == _PREDICTED[scope])
    return None if told.obstacle else told


class _Try:
    def __init__(self, scope: str, make_step: Callable[[], Any], batches: Optional[list[Any]], iterations: int) -> None:
        self.trial = Trial(scope)
        self.seen: list[Any] = []
        self.name = self.device = ""
        self._make, self._batches, self._iterations = make_step, batches, iterations

    def run(self, fewest: int, most: int) -> int:
        """@return  Calls until the graphs were there."""
        torch.manual_seed(0)
        random.seed(0)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(0)
        step = self._make()
        if not callable(step):
            refuse(f"make_step returned a {type(step).__name__}", "let it return the step, a function", where="try_scopes")
        self.name = getattr(step, "__qualname__", type(step).__qualname__).rpartition("<locals>.")[2]
        batches = Batches(self._batches)
        models = self._first_call(step, batches)
        made = self._graphs_of(step, models)
        run = made[0] if self.trial.scope == "iteration" else step
        calls = 1
        while calls < fewest or (calls < most and any(function.found.phase for function in made)):
            self._call(run, batches)
            calls += 1
        self.trial.ms = min(self._timed(run, batches) for _ in range(_PARTS))
        self.trial.replays = sum(one.replays for function in made for one in function.info().signatures)
        for model in models.values():
            self.seen += [tensor.detach().cpu() for tensor in (*model.parameters(), *model.buffers())]
        return calls

    def _call(self, step: Step, batches: Batches) -> None:
        args, kwargs = batches.next()
        result = step(*args, **kwargs)
        results = [comparable(leaf) for leaf in pytree.tree_leaves(result)]
        self.seen += [one.detach().clone() for one in results if one is not None]

    def _first_call(self, step: Step, batches: Batches) -> dict[str, nn.Module]:
        """The modules with parameters that the step itself calls, by the names of their classes."""
        open_calls: list[nn.Module] = []
        found: list[nn.Module] = []

        def begin(module: nn.Module, args: Any) -> None:
            is_part = bool(open_calls) or module in found or is_recomputed()
            if not is_part and any(True for _ in module.parameters()):
                found.append(module)
            open_calls.append(module)

        def end(module: nn.Module, args: Any, result: Any) -> None:
            open_calls.pop()

        hooks = [register_module_forward_pre_hook(begin), register_module_forward_hook(end, always_call=True)]
        try:
            self._call(step, batches)
        finally:
            for hook in hooks:
                hook.remove()
        names = [type(module).__name__ for module in found]
        of = {name if names.count(name) == 1 else f"{name} {i + 1}": module for i, (name, module) in enumerate(zip(names, found))}
        devices = {parameter.device.type for module in found for parameter in module.parameters()}
        self.device = ", ".join(sorted(devices)) or "cpu"
        return of

    def _graphs_of(self, step: Step, models: dict[str, nn.Module]) -> list[GraphedFunction]:
        made: list[GraphedFunction] = []
        scope, written = self.trial.scope, []
        if scope == "eager":
            return made
        if scope == "iteration":
            made.append(graphed(step, on_fallback=self._note))
        for name, model in models.items():
            if scope == "layers" and _has_layers(model):
                layers = graph_layers(model, on_fallback=self._note)
                made += [layers[one] for one in layers]
                written.append(name)
            elif scope == "model":
                made.append(replacement(graphed(model, on_fallback=self._note, max_in_flight=8)))
                written.append(name)
        if not made:
            self.trial.reason = "no model has a list of layers" if scope == "layers" and models else "the step calls no model"
        self.trial.write = "; ".join(_WRITE[scope].format(models=name) for name in written or [""])
        return made

    def _note(self, reason: str) -> None:
        self.trial.reason = self.trial.reason or reason

    def _timed(self, step: Step, batches: Batches) -> float:
        """Milliseconds per call."""
        count = -(-self._iterations // _PARTS)
        _wait()
        begin = time.perf_counter()
        for _ in range(count):
            self._call(step, batches)
        _wait()
        return 1000 * (time.perf_counter() - begin) / count


def _has_layers(model: nn.Module) -> bool:
    try:
        return bool(find_layers(model))
    except UsageError:
        return False


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _are_equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other))


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return bool(torch.equal(one, other) or (one.is_floating_point() and torch.allclose(one, other, 0, 0, equal_nan=True)))



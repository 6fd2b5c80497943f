"""Modules of a step that read values which change from call to call, and so would keep the whole step eager. They are found in two
eager calls; from then on they are parts that stay eager, and the rest of the step is a graph.

A part may only be what leaves nothing behind but its results: Scout looks at that. And a replay in which it gives other tensors than
when the step was captured is taken back, and its call made eagerly; nobody has promised that it always gives the same.
"""

import logging
import sys
import threading
import weakref
from collections import Counter
from types import FrameType
from typing import Any, Callable, Iterator, NamedTuple, Optional

import torch
from torch.utils import _pytree as pytree

from ._call import name_of
from ._eager import EagerPart
from ._load import _C
from ._patching import replacement
from ._recording import users_line
from ._replaced import Replaced
from ._timed_calls import Watch

_log = logging.getLogger("pianola")
_LOOKS = 2  # eager calls that are looked at
_EAGER, _REPLAYS = 5, 12  # that are timed: behind warm-up calls and a capture the first ones are slow
_MOST_CALLS = 50  # until there are as many replays
_MOST_MODULES = 256


# --- What a call reads, and where ---


class _Read(NamedTuple):
    operation: str
    value: Any  # what the host learns
    where: str
    module: "Optional[_ModuleCall]"  # the innermost one


class _ModuleCall:
    """A call of a module in a call that is looked at."""

    def __init__(self, module: torch.nn.Module, around: "Optional[_ModuleCall]", args: tuple, kwargs: dict) -> None:
        self.module, self.around = module, around
        self.why_not = _why_not(module)
        self._given = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        self._versions = self._versions_now()
        self._attributes = _attributes_of(module)
        self._began = torch._C._autograd._get_sequence_nr()
        self._drawn = _random_states(self._given)
        self.casts = any(torch.is_autocast_enabled(kind) for kind in {tensor.device.type for tensor in self._given})

    def _versions_now(self) -> list[int]:
        tensors = [*self._given, *self.module.parameters(), *self.module.buffers()]
        return [0 if one.is_inference() else one._version for one in tensors]

    def finish(self, result: Any) -> None:
        self.why_not = self.why_not or self._what_it_left() or self._what_it_returned(result)
        self._given, self._attributes, self._drawn = [], [], []

    def _what_it_left(self) -> str:
        if self._versions_now() != self._versions:
            return "writes a tensor in place"
        now = _attributes_of(self.module)
        if len(now) != len(self._attributes) or any(one is not other for one, other in zip(now, self._attributes)):
            return "sets an attribute"
        before, after = self._drawn, _random_states(self._given)
        if not all(map(torch.equal, before, after)):
            return "draws random numbers"
        return ""

    def _what_it_returned(self, result: Any) -> str:
        results = [leaf for leaf in pytree.tree_leaves(result) if leaf is not None]
        if not results or not all(type(leaf) in (torch.Tensor, torch.nn.Parameter) for leaf in results):
            return "returns something else than tensors"
        shapes = {tensor.shape for tensor in self._given}
        if not all(tensor.dim() == 0 or tensor.shape in shapes for tensor in results):
            return "returns a tensor of another shape than it is given"
        if len({tensor.untyped_storage().data_ptr() for tensor in results}) != len(results):
            return "returns tensors that share memory"
        if self._uses_history_of_others(results):
            return "uses a tensor with history that it was not given"
        return ""

    def _uses_history_of_others(self, results: list[torch.Tensor]) -> bool:
        seen = {tensor.grad_fn for tensor in self._given}
        waiting = [tensor.grad_fn for tensor in results]
        while waiting:
            node = waiting.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if type(node).__name__ == "AccumulateGrad":
                continue
            if node._sequence_nr() < self._began:
                return True
            waiting += [following for following, _ in node.next_functions]
        return False


def _why_not(module: torch.nn.Module) -> str:
    if replacement(module) is not None or module._compiled_call_impl is not None or isinstance(module, torch.jit.ScriptModule):
        return "has a forward that was replaced"
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        return "is called under hooks on saved tensors"
    return ""


def _attributes_of(module: torch.nn.Module) -> list[Any]:
    found = []
    for part in module.modules():
        found += [part._parameters.values(), part._buffers.values(), vars(part).values()]
    return [value for values in found for value in values]


def _random_states(given: list[torch.Tensor]) -> list[torch.Tensor]:
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():
        states += [torch.cuda.get_rng_state(device) for device in sorted({t.get_device() for t in given if t.is_cuda})]
    return states


def _is_of_optimizer() -> bool:
    """What an optimizer counts in tensors is the host's own."""
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None:
        if isinstance(frame.f_locals.get("self"), (torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)):
            return True
        frame = frame.f_back
    return False


class Scout:
    """Context manager: notes what an eager call on this thread reads of values, and in which calls of modules."""

    def __init__(self) -> None:
        self.reads: list[_Read] = []
        self._seen = _C.ReadsSeen(self._note)
        self._calls: list[_ModuleCall] = []  # that are open
        self._casting: list[_ModuleCall] = []  # those under autocast
        self._uses: Counter[int] = Counter()  # of parameters, by calls of modules that have them
        self._outer: Optional[Scout] = None

    def __enter__(self) -> "Scout":
        self._outer, _here.scout = _here.scout, self
        _replaced.__enter__()
        self._seen.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._seen.__exit__(*exception)
        _replaced.__exit__()
        _here.scout = self._outer
        for call in self._casting:  # a part would cast it by itself, and round its gradient otherwise
            if any(self._uses[id(parameter)] > 1 for parameter in call.module.parameters()):
                call.why_not = call.why_not or "uses a parameter under autocast that is used again"

    def _note(self, operation: str, number: Optional[str], tensors: list[torch.Tensor], is_copy: bool, is_backward: bool) -> None:
        if _is_of_optimizer():
            return
        learnt: Any = [tensor.tolist() if is_copy else tensor.shape for tensor in tensors] if number is None else number
        module = self._calls[-1] if self._calls and not is_backward else None
        self.reads.append(_Read(operation, learnt, users_line(), module))

    def call(self, original: Callable[..., Any], module: torch.nn.Module, args: tuple, kwargs: dict) -> Any:
        call = _ModuleCall(module, self._calls[-1] if self._calls else None, args, kwargs)
        self._uses.update(id(parameter) for parameter in module._parameters.values() if parameter is not None)
        self._casting += [call] if call.casts else []
        self._calls.append(call)
        try:
            result = original(module, *args, **kwargs)
        except BaseException:
            call.why_not = call.why_not or "raises"
            raise
        finally:
            self._calls.pop()
        call.finish(result)
        return result


class _Here(threading.local):
    scout: Optional[Scout] = None
    parts: dict[int, "_FoundPart"] = {}  # by identity of their modules


_here = _Here()


def _watching(original: Callable[..., Any]) -> Callable[..., Any]:
    def _call_impl(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _here.scout is not None:
            return _here.scout.call(original, self, args, kwargs)
        part = _here.parts.get(id(self)) if _C.islands_are_open() else None
        return original(self, *args, **kwargs) if part is None else part(*args, **kwargs)

    return _call_impl


_replaced = Replaced([(torch.nn.Module, "_call_impl", _watching)])


# --- Which of them are parts ---


def _varying(first: list[_Read], second: list[_Read]) -> list[int]:
    """Reads of the second call that gave something else in the first; all where the calls cannot be compared."""
    if [one.operation for one in first] != [one.operation for one in second]:
        return list(range(len(second)))
    return [i for i, (one, other) in enumerate(zip(first, second)) if one.value != other.value]


def _around(call: Optional[_ModuleCall]) -> Iterator[_ModuleCall]:
    while call is not None:
        yield call
        call = call.around


def _unfit(reads: list[_Read]) -> dict[int, str]:
    """Modules around reads that cannot be parts, by identity, and why."""
    calls = [call for read in reads for call in _around(read.module)]
    return {id(call.module): f"{type(call.module).__name__} {call.why_not}" for call in calls if call.why_not}


class Found(NamedTuple):
    modules: dict[int, torch.nn.Module]  # by identity
    where: list[str]  # what each reads
    why_not: str  # where there is none


def parts_of(first: list[_Read], second: list[_Read]) -> Found:
    """The smallest modules around the reads that vary."""
    unfit = {**_unfit(first), **_unfit(second)}
    chosen: dict[int, tuple[_ModuleCall, str]] = {}
    varying = _varying(first, second)
    for read in (second[i] for i in varying):
        call = next((one for one in _around(read.module) if id(one.module) not in unfit), None)
        if call is None:
            whys = [unfit[id(one.module)] for one in _around(read.module)]
            return Found({}, [], f"{read.operation} ({read.where}) reads another value in each call, and " +
                         (whys[0] if whys else "no module is around it"))  # fmt: skip
        chosen.setdefault(id(call.module), (call, f"{read.operation} ({read.where})"))
    outer = [(call, where) for call, where in chosen.values() if not any(id(one.module) in chosen for one in _around(call.around))]
    if not outer or len(outer) > _MOST_MODULES:
        return Found({}, [], "" if not outer else f"{len(outer)} modules read values that change")
    counts = Counter(f"{type(call.module).__name__}: {where}" for call, where in outer)
    where = [text if count == 1 else f"{count} x {text}" for text, count in counts.items()]
    return Found({id(call.module): call.module for call, _ in outer}, where, "")


class _FoundPart(EagerPart):
    """A call of a module."""

    is_found = True

    def __init__(self, module: torch.nn.Module) -> None:
        reference = weakref.ref(module)

        def call(*args: Any, **kwargs: Any) -> Any:
            alive = reference()
            assert alive is not None, "its parameters are the graph's"
            return alive._call_impl(*args, **kwargs)

        call.__qualname__ = type(module).__qualname__
        super().__init__(call)


class FoundParts:
    """Those of one graphed function.

    `phase` is "" unless calls have to come by call(): "look", "time" (eager calls), and "race" (until there are enough replays).
    """

    def __init__(self) -> None:
        self.phase = ""
        self.said: list[str] = []
        self.note = ""  # what came of it, where that was nothing
        self._parts: dict[int, _FoundPart] = {}
        self._outer: list[dict[int, _FoundPart]] = []
        self._had_a_try = False
        self._reads: list[list[_Read]] = []  # of calls that were looked at
        self._found = Found({}, [], "")
        self._eager = self._replayed = Watch(torch.device("cpu"))
        self._calls = 0  # of the race
        self._lock = threading.Lock()

    def may_look(self, info: Any) -> bool:
        """Behind a call whose signature stays eager; whether it reads values, so that calls are to be looked at."""
        if self._had_a_try or not any(one.reads_values and str(one.state) == "eager" for one in info.signatures[:1]):
            return False
        self._had_a_try = True
        self.phase = "look"
        return True

    def __enter__(self) -> None:
        """Calls of their modules by this thread go to the parts, where a step is observed or recorded."""
        self._outer.append(_here.parts)
        if self._parts:
            _here.parts = self._parts
            _replaced.__enter__()

    def __exit__(self, *exception: Any) -> None:
        if _here.parts is self._parts and self._parts:
            _replaced.__exit__()
        _here.parts = self._outer.pop()

    def call(self, owner: Any, args: tuple, kwargs: dict) -> Any:
        """A call in one of the phases. `owner` is the graphed function."""
        if not self._lock.acquire(blocking=False):
            return owner.call_known(args, kwargs)
        try:
            if self.phase == "look":
                return self._look(owner, args, kwargs)
            if self.phase == "time":
                return self._time(owner, args, kwargs)
            return self._race(owner, args, kwargs)
        finally:
            self._lock.release()

    def _look(self, owner: Any, args: tuple, kwargs: dict) -> Any:
        with Scout() as scout:
            result = owner.run_original(*args, **kwargs)
        self._reads.append(scout.reads)
        if len(self._reads) < _LOOKS:
            return result
        found = parts_of(*self._reads)
        self._reads = []
        if not found.modules:
            self._give_up(owner, found.why_not)
            return result
        tensors = [leaf for module in found.modules.values() for leaf in module.parameters()]
        device = tensors[0].device if tensors else torch.device("cpu")
        self._found, self._eager, self._replayed = found, Watch(device), Watch(device)
        self.phase = "time"
        return result

    def _time(self, owner: Any, args: tuple, kwargs: dict) -> Any:
        result = self._eager.run(lambda: owner.run_original(*args, **kwargs), lambda: True)
        if self._eager.count() >= _EAGER:
            self._parts = {key: _FoundPart(module) for key, module in self._found.modules.items()}
            _log.info("%s: parts that stay eager: %s", name_of(owner.original), "; ".join(self._found.where))
            owner.forget_graphs()
            self.phase = "race"
        return result

    def _race(self, owner: Any, args: tuple, kwargs: dict) -> Any:
        self._calls += 1
        before = owner.replays()
        result = self._replayed.run(lambda: owner.call_known(args, kwargs), lambda: owner.replays() > before)
        if self.phase != "race":  # it stays eager
            return result
        if self._replayed.count() >= _REPLAYS and self._eager.is_settled() and self._replayed.is_settled():
            self._judge(owner)
        elif self._calls > _MOST_CALLS and self._replayed.count() < _REPLAYS:
            self._drop(owner, f"there were {self._replayed.count()} replays in {self._calls} calls")
        return result

    def _judge(self, owner: Any) -> None:
        eager, replayed = self._eager.fastest(), self._replayed.fastest()
        times = f"{replayed:.0f} us a call replayed, {eager:.0f} us eager"
        if replayed > eager:
            return self._drop(owner, f"that is slower: {times}")
        self.phase = ""
        self.said = [f"{where}; {times}" for where in self._found.where]
        return None

    def has_dropped(self, owner: Any, reason: str) -> bool:
        """A signature stays eager, for a reason. Whether it was tried with parts, and is warmed up without them again."""
        if self.phase == "race":
            self._drop(owner, reason)
            return True
        return False

    def _drop(self, owner: Any, why: str) -> None:
        names = ", ".join(sorted({type(module).__name__ for module in self._found.modules.values()}))
        self._parts = {}
        self._give_up(owner, f"leaving {names} out of the graph was tried: {why}")

    def _give_up(self, owner: Any, why: str) -> None:
        self.phase = ""
        self.note = f"\n  note:  {why}" if why else ""
        owner.forget_graphs()  # which warms up, and says why it stays eager

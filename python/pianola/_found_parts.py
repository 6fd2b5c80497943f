"""Modules of a step that read values which change from call to call, and so would keep the whole step eager. They are found in a few
eager calls; from then on they are parts that stay eager, and the rest of the step is a graph.

A part may only be what leaves nothing behind but its results: Scout looks at that. And a replay in which it gives other tensors than
when the step was captured is taken back, and its call made eagerly; nobody has promised that it always gives the same.
"""

import logging
import re
import threading
import weakref
from collections import Counter
from typing import Any, Iterator, NamedTuple, Optional

import torch

from ._call import name_of
from ._called_modules import IMPLEMENTATION
from ._eager import EagerPart
from ._load import _C
from ._scout import ModuleCall, Read, Scout, are_alike
from ._timed_calls import Watch

_log = logging.getLogger("pianola")
_MOST_LOOKS = 6  # at eager calls, until two of them read something else
_EAGER, _REPLAYS = 5, 12  # that are timed: behind warm-up calls and a capture the first ones are slow
_MOST_CALLS = 50  # until there are as many replays
_MOST_MODULES = 256
_RULE, _OF_READS = re.compile(r"\[(PG\d+)\]"), re.compile(r"PG1\d\d$")  # as errors name them


# --- Which of them are parts ---


def _varying(first: list[Read], second: list[Read]) -> list[int]:
    """Reads of the second call that gave something else in the first; all where the calls cannot be compared."""
    if [one.operation for one in first] != [one.operation for one in second]:
        return list(range(len(second)))
    return [i for i, (one, other) in enumerate(zip(first, second)) if one.value != other.value]


def _around(call: Optional[ModuleCall]) -> Iterator[ModuleCall]:
    while call is not None:
        yield call
        call = call.around


def _unfit(first: Scout, second: Scout) -> dict[int, str]:
    """Modules that cannot be parts, by identity, and why. All calls of a module have to be fit."""
    whys: dict[int, str] = {}
    states: dict[int, list[Any]] = {}
    for call in (*first.calls, *second.calls):
        known = states.setdefault(call.key, call.state)
        why = call.why_not or ("" if are_alike(known, call.state) else "is otherwise from call to call")
        if why:
            whys.setdefault(call.key, f"{call.name} {why}")
    return whys


class Found(NamedTuple):
    modules: "list[weakref.ref[torch.nn.Module]]"
    names: str
    where: list[str]  # what each reads
    why_not: str  # where there is none


def parts_of(first: Scout, second: Scout) -> Found:
    """The smallest modules around the reads that vary."""
    if failure := first.failure or second.failure:
        return Found([], "", [], failure)
    unfit = _unfit(first, second)
    chosen: dict[int, tuple[ModuleCall, str]] = {}
    for read in (second.reads[i] for i in _varying(first.reads, second.reads)):
        call = next((one for one in _around(read.module) if one.key not in unfit), None)
        if call is None:
            whys = [unfit[one.key] for one in _around(read.module)]
            why_not = whys[0] if whys else "no module is around it"
            return Found([], "", [], f"{read.operation} ({read.where}) reads another value in each call, and {why_not}")
        chosen.setdefault(call.key, (call, f"{read.operation} ({read.where})"))
    inner = {part for call, _ in chosen.values() for part in call.parts} - chosen.keys()
    nested = {key for key, (call, _) in chosen.items() if any(one.key in chosen for one in _around(call.around))}
    outer = {key: one for key, one in chosen.items() if key not in nested}
    if not outer or len(outer) > _MOST_MODULES:
        return Found([], "", [], "" if not outer else f"{len(outer)} modules read values that change")
    if any(call.key in inner and not any(one.key in outer for one in _around(call)) for call in second.calls):
        return Found([], "", [], "a module in one that reads values that change is called from elsewhere, too")
    counts = Counter(f"{call.name}: {where}" for call, where in outer.values())
    where = [text if count == 1 else f"{count} x {text}" for text, count in counts.items()]
    names = ", ".join(sorted({call.name for call, _ in outer.values()}))
    return Found([call.reference for call, _ in outer.values()], names, where, "")


class _FoundPart(EagerPart):
    """Calls of a module."""

    is_found = True

    def __init__(self, reference: "weakref.ref[torch.nn.Module]") -> None:
        def call(*args: Any, **kwargs: Any) -> Any:
            module = reference()
            assert module is not None, "its parameters are the graph's"
            return module._call_impl(*args, **kwargs)

        call.__qualname__ = type(reference()).__qualname__
        super().__init__(call)
        self.module = reference
        self._lock = threading.Lock()
        self._open = 0

    def stand_in(self) -> None:
        """For calls of the module by any thread. Those that run no step of a graph are what they were."""
        with self._lock:
            module = self.module()
            if self._open == 0 and module is not None:
                vars(module)[IMPLEMENTATION] = self
            self._open += 1

    def step_aside(self) -> None:
        with self._lock:
            self._open -= 1
            module = self.module()
            if self._open == 0 and module is not None:
                vars(module).pop(IMPLEMENTATION, None)


class _Here(threading.local):
    def __init__(self) -> None:
        self.entered: list[list[_FoundPart]] = []


class FoundParts:
    """Those of one graphed function.

    `phase` is "" unless calls have to come by call(): "look", "time" (eager calls), and "race" (until there are enough replays).
    """

    def __init__(self) -> None:
        self.phase = ""
        self.said: list[str] = []
        self.note = ""  # what came of it, where that was nothing
        self._parts: list[_FoundPart] = []
        self._here = _Here()
        self._had_a_try = False
        self._reason = ""  # why the step stays eager, which nobody was told yet
        self._looks = 0
        self._scout: Optional[Scout] = None  # of the last call that was looked at
        self._found = Found([], "", [], "")
        self._eager = self._replayed = Watch(torch.device("cpu"))
        self._calls = 0  # of the race
        self._lock = threading.Lock()

    def may_look(self, info: Any, reason: str) -> bool:
        """Behind a call whose signature stays eager, for a reason; whether that is what it reads, so that calls are to be looked at. A
        function that replays other calls is left alone."""
        if self._had_a_try or not any(one.reads_values and str(one.state) == "eager" for one in info.signatures[:1]):
            return False
        rule = _RULE.search(reason)
        if (rule and not _OF_READS.match(rule[1])) or any(str(one.state) == "captured" for one in info.signatures):
            return False
        self._had_a_try, self._reason = True, reason
        self.phase = "look"
        return True

    def __enter__(self) -> None:
        """The function is observed or recorded: calls of their modules go to the parts."""
        entered = self._parts
        self._here.entered.append(entered)
        for part in entered:
            part.stand_in()

    def __exit__(self, *exception: Any) -> None:
        for part in self._here.entered.pop():
            part.step_aside()

    def call(self, owner: Any, args: tuple, kwargs: dict) -> Any:
        """A call in one of the phases. `owner` is the graphed function."""
        if _C.islands_are_open() or not self._lock.acquire(blocking=False):  # in a step of somebody else's, or on another thread
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
        self._looks += 1
        before, self._scout = self._scout, scout
        if before is None:
            return result
        found = parts_of(before, scout)
        if not found.modules and not found.why_not and self._looks < _MOST_LOOKS:
            return result  # by chance both read the same
        self._scout = None
        if not found.modules:
            self._note(found.why_not)
            owner.tell_fallback(self._reason + self.note)
            return result
        modules = [module for reference in found.modules if (module := reference()) is not None]
        device = next((one.device for module in modules for one in module.parameters()), torch.device("cpu"))
        self._found, self._eager, self._replayed = found, Watch(device), Watch(device)
        self.phase = "time"
        return result

    def _time(self, owner: Any, args: tuple, kwargs: dict) -> Any:
        result = self._eager.run(lambda: owner.run_original(*args, **kwargs), lambda: True)
        if self._eager.count() >= _EAGER:
            self._parts = [_FoundPart(reference) for reference in self._found.modules if reference() is not None]
            _log.info("%s: parts that stay eager: %s", name_of(owner.original), "; ".join(self._found.where))
            owner.forget_graphs()
            self.phase = "race"
        return result

    def _race(self, owner: Any, args: tuple, kwargs: dict) -> Any:
        self._calls += 1
        before = owner.replays()
        if self._replayed.count() < _REPLAYS:
            result = self._replayed.run(lambda: owner.call_known(args, kwargs), lambda: owner.replays() > before)
        else:  # the times of the last ones may not be there yet
            result = owner.call_known(args, kwargs)
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
        self._parts = []
        self._note(f"leaving {self._found.names} out of the graph was tried: {why}")
        owner.forget_graphs()  # which warms up, and says why it stays eager

    def _note(self, why: str) -> None:
        self.phase = ""
        self.note = f"\n  note:  {why}" if why else ""

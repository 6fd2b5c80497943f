"""Modules and functions of a step that read values which change from call to call, and so would keep the whole step eager. They are found
in a few eager calls; from then on they are parts that stay eager, and the rest of the step is a graph.

A part may only be what leaves nothing behind but its results: SeenCall tells. And a replay in which it gives other tensors than when the
step was captured is taken back, and its call made eagerly; nobody has promised that it always gives the same.
"""

import contextlib
import logging
import re
import threading
from collections import Counter
from typing import Any, Iterator, NamedTuple, Optional, Sequence

import torch

from ._call import name_of
from ._found_calls import FoundFunction, FoundPart
from ._load import _C
from ._process_groups import ranks
from ._scout import Read, Scout
from ._seen_call import SeenCall, are_alike
from ._timed_calls import Watch

_log = logging.getLogger("pianola")
_MOST_LOOKS = 6  # at eager calls, until two of them read something else
_EAGER, _REPLAYS = 5, 12  # that are timed: behind warm-up calls and a capture the first ones are slow
_MOST_CALLS = 50  # until there are as many replays
_MOST_PARTS = 256
_RULE = re.compile(r"\[(PG\d+)\]")  # as errors name them
_OF_READS = re.compile(r"PG(1\d\d|301)$")  # and of numbers that were read
_OF_COPIES_ON_THE_CPU = "PG103"  # which are no operations


# --- Which of them are parts ---


def _varying(first: list[Read], second: list[Read]) -> list[int]:
    """Reads of the second call that gave something else in the first; all where the calls cannot be compared."""
    if [one.operation for one in first] != [one.operation for one in second]:
        return list(range(len(second)))
    return [i for i, (one, other) in enumerate(zip(first, second)) if one.value != other.value]


def _around(call: Optional[SeenCall]) -> Iterator[SeenCall]:
    while call is not None:
        yield call
        call = call.around


def _unfit(first: Scout, second: Scout) -> dict[int, str]:
    """What cannot be a part, by its key, and why. All calls of it have to be fit."""
    whys: dict[int, str] = {}
    states: dict[int, list[Any]] = {}
    for call in (*first.calls, *second.calls):
        alike = all(are_alike(states.setdefault(key, state), state) for key, state in call.states)
        why = call.why_not or ("" if alike else "is otherwise from call to call")
        if why:
            whys.setdefault(call.key, f"{call.name} {why}")
    return whys


class Found(NamedTuple):
    calls: list[SeenCall]  # one of each part
    where: list[str]  # what each reads
    why_not: str  # where there is none

    @property
    def names(self) -> str:
        return ", ".join(sorted({call.name for call in self.calls}))


def _none(why_not: str) -> Found:
    return Found([], [], why_not)


def _why_none(scout: Scout) -> str:
    """Of one look; "" where there may be some."""
    around = [read for read in scout.reads if read.call is not None]
    if scout.failure or around or not scout.reads:
        return scout.failure
    return f"no module or plain function is around {scout.reads[0].operation} ({scout.reads[0].where})"


def parts_of(first: Scout, second: Scout) -> Found:
    """The smallest calls of modules and functions around the reads that vary."""
    if failure := first.failure or second.failure:
        return _none(failure)
    unfit = _unfit(first, second)
    chosen: dict[SeenCall, str] = {}  # what each reads
    for read in (second.reads[i] for i in _varying(first.reads, second.reads)):
        where = f"{read.operation} ({read.where})"
        call = next((one for one in _around(read.call) if one.key not in unfit), None)
        if call is None:
            whys = [unfit[one.key] for one in _around(read.call)]
            return _none(f"{where} reads another value in each call, and {whys[0] if whys else 'no module or plain function is around it'}")
        chosen.setdefault(call, where)
    return _outermost(chosen, second.calls)


def _outermost(chosen: dict[SeenCall, str], calls: list[SeenCall]) -> Found:
    """A call inside of one of another part is one of its own nowhere."""
    keys = {call.key for call in chosen}
    outer = {call: where for call, where in chosen.items() if not any(one.key in keys - {call.key} for one in _around(call.around))}
    parts = {call.key: call for call in outer}
    if not parts or len(parts) > _MOST_PARTS:
        return _none("" if not parts else f"{len(parts)} modules and functions read values that change")
    inner = {part for call in outer for part in call.parts} - parts.keys()
    if any(call.key in inner and not any(one.key in parts for one in _around(call)) for call in calls):
        return _none("a module in one that reads values that change is called from elsewhere, too")
    outermost = {call: where for call, where in outer.items() if not any(one.key == call.key for one in _around(call.around))}
    counts = Counter(f"{call.name}: {where}" for call, where in outermost.items())
    return Found(list(parts.values()), [text if count == 1 else f"{count} x {text}" for text, count in counts.items()], "")


class _Here(threading.local):
    def __init__(self) -> None:
        self.entered: "list[contextlib.AbstractContextManager[None]]" = []


def _is_for_reads(reason: str, signature: "_C.SignatureInfo") -> bool:
    """Whether the calls stay eager for what they read, and other ranks are not to know."""
    rule = _RULE.search(reason)
    if rule and rule[1] == _OF_COPIES_ON_THE_CPU:
        return signature.reads_values or ranks() == 1
    return signature.reads_values and (rule is None or _OF_READS.match(rule[1]) is not None)


@contextlib.contextmanager
def _standing_in(parts: Sequence[FoundPart]) -> Iterator[None]:
    with contextlib.ExitStack() as entered:
        for part in parts:
            entered.callback(part.step_aside)
            part.stand_in()
        yield


class FoundParts:
    """Those of one graphed function.

    `phase` is "" unless calls have to come by call(): "look", "time" (eager calls), and "race" (until there are enough replays).
    """

    def __init__(self) -> None:
        self.phase = ""
        self.said: list[str] = []
        self.note = ""  # what came of it, where that was nothing
        self._parts: list[FoundPart] = []
        self._candidates: list[FoundPart] = []  # while eager calls are timed
        self._here = _Here()
        self._had_a_try = False
        self._reason = ""  # why the step stays eager, which nobody was told yet
        self._looks = 0
        self._functions: list[FoundFunction] = []  # around reads
        self._scout: Optional[Scout] = None  # of the last call that was looked at
        self._found = _none("")
        self._eager = self._replayed = Watch(torch.device("cpu"))
        self._calls = 0  # of the race
        self._lock = threading.Lock()

    def may_look(self, info: Any, reason: str) -> bool:
        """Behind a call whose signature stays eager, for a reason; whether that is what it reads, so that calls are to be looked at. A
        function that replays other calls is left alone."""
        states = [str(one.state) for one in info.signatures]
        if self._had_a_try or states[:1] != ["eager"] or "captured" in states or not _is_for_reads(reason, info.signatures[0]):
            return False
        self._had_a_try, self._reason = True, reason
        self.phase = "look"
        return True

    def __enter__(self) -> None:
        """The function is observed or recorded: calls of their modules and functions go to the parts."""
        standing = _standing_in(self._parts)
        standing.__enter__()
        self._here.entered.append(standing)

    def __exit__(self, *exception: Any) -> None:
        self._here.entered.pop().__exit__(None, None, None)

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
        with _standing_in(self._functions), Scout() as scout:
            result = owner.run_original(*args, **kwargs)
        if not scout.has_looked:
            return result
        self._looks += 1
        new = [one for one in scout.functions() if one not in self._functions]
        if new and self._looks < _MOST_LOOKS:  # nothing stood in for them
            self._functions += new
            self._scout = None
            return result
        before, self._scout = self._scout, scout
        found = _none(_why_none(scout)) if before is None else parts_of(before, scout)
        may_be_there = any(read.call is not None for read in scout.reads) and self._looks < _MOST_LOOKS
        if not found.calls and not found.why_not and may_be_there:
            return result  # the first one, or by chance both read the same
        self._scout, self._functions = None, []
        self._take(owner, found)
        return result

    def _take(self, owner: Any, found: Found) -> None:
        self._candidates = [part for call in found.calls if (part := call.make_part()) is not None]
        if not self._candidates:
            self._note(found.why_not)
            return owner.tell_fallback(self._reason + self.note)
        device = next((call.device for call in found.calls if call.device.type != "cpu"), torch.device("cpu"))
        self._found, self._eager, self._replayed = found, Watch(device), Watch(device)
        self.phase = "time"
        return None

    def _time(self, owner: Any, args: tuple, kwargs: dict) -> Any:
        result = self._eager.run(lambda: owner.run_original(*args, **kwargs), lambda: True)
        if self._eager.count() >= _EAGER:
            self._parts, self._candidates = self._candidates, []
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
        eager, missed = self._eager.fastest(), owner.misses()
        replayed = self._replayed.fastest() + eager * missed / (missed + owner.replays())  # one that is taken back costs both
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

"""Whether what a call read on the host is as it was: the states that a function was met in, each with a number.

A graph freezes what Python read while it was captured. So each call is told by what of that it finds: the same values, the
same graph; others, another one, with warm-up calls of its own. A value that is another one at each call ends that.
"""

from typing import Any, NamedTuple, Optional

import torch

from ._host_places import GONE, KEYED, MISSING, Place, is_same
from ._host_reads import HostReads
from ._load import _C
from ._structure import Structure

# New states in a row, none of which saw a replay: beyond that they change as fast as they are captured.
MOST_CHANGES = 8
_MOST_STATES = 64  # of one structure of arguments


class _Changes:
    """New states in a row, without a replay, of one structure of arguments."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class State:
    """One state of what is read, and the number that stands for it and for the structure of the arguments."""

    def __init__(self, number: int, changes: _Changes) -> None:
        self.number = number
        self._changes = changes
        self._places: dict[tuple, Place] = {}
        self.guarded: tuple[Optional[_C.HostGuard], list[Place]] = (None, [])  # the guard's places, by their numbers
        self.unfollowed: list[str] = []  # what was read, and is not compared
        self.refusal = ""  # why no graph could be guarded
        self.is_refused = False

    def difference(self) -> Optional[Place]:
        """The first place that is not as it was; None where all are."""
        guard, places = self.guarded
        number = -1 if guard is None else guard.check()
        return None if number < 0 else places[number]

    def learn(self, reads: HostReads) -> None:
        """What another call in this state read: the latest look counts."""
        if reads.error:
            self.refusal = f"what it reads on the host cannot be compared at each call: {reads.error}"
        for place in reads.places:
            owner = place.owner
            if owner is not GONE and not (place.changed and (place.is_torchs or _is_of_tensors(place))):
                self._places[place.identity] = place
        self.guarded = _guard_of(self._places)
        self.unfollowed += [what for what in reads.unfollowed if what not in self.unfollowed]

    def note_replay(self) -> None:
        self._changes.count = 0

    @property
    def places(self) -> list[Place]:
        return self.guarded[1]


def _guard_of(places: dict[tuple, Place]) -> tuple[_C.HostGuard, list[Place]]:
    """Of those that live; the others are taken out."""
    guard = _C.HostGuard()
    numbered = []
    for key, place in list(places.items()):
        owner = place.owner
        if owner is GONE:
            del places[key]
        else:
            numbered.append(place)
            guard.add(place.kind, owner, place.key, place.before, MISSING)
    guard.seal()
    return guard, numbered


def _is_of_tensors(place: Place) -> bool:
    """Whether there is another tensor now: the library knows which tensors the graph reads."""
    before, now = place.before, place.get()
    return all(_is_tensor_or_nothing(one) for one in (before, now))


def _is_tensor_or_nothing(value: Any) -> bool:
    return value is None or value is GONE or value is MISSING or isinstance(value, torch.Tensor)


class Change(NamedTuple):
    place: Place
    before: Any
    now: Any
    owner: str = ""  # the class of the optimizer that the place is a parameter group of

    def text(self) -> str:
        """ "model.layers[2].dropout.p changed from 0.1 to 0.2, which train.py:12 in forward reads"."""
        reader = f", which {self.place.where} reads" if self.place.where else ""
        entry = self._entry()
        if entry is not None:
            key, before, now = entry
            whose = f" of the optimizer {self.owner}" if self.owner else ""
            return f"{self.place.name}[{key!r}]{whose} changed from {_text(before)} to {_text(now)}{reader}"
        if self.place.kind in ("contents", "function", "bytes"):
            what = {"contents": "the entries of ", "function": "the code, defaults or closure of ", "bytes": "the values of "}
            return f"{what[self.place.kind]}{self.place.name} changed{reader}"
        return f"{self.place.name} changed from {_text(self.before)} to {_text(self.now)}{reader}"

    def _entry(self) -> Optional[tuple[Any, Any, Any]]:
        """Of a dict that has the keys that it had: the first entry that is another one, with its key."""
        if self.place.kind != "contents" or not isinstance(self.place.owner, KEYED) or not isinstance(self.now, tuple):
            return None
        pairs = list(zip(self.before, self.now))
        if len(self.before) != len(self.now) or any(one[0] != other[0] for one, other in pairs):
            return None
        changed = ((one[0], one[1], other[1]) for one, other in pairs if not is_same(one[1], other[1]))
        return next(changed, None)


def _optimizer_of(place: Place, states: list[State]) -> str:
    """Of an optimizer that was read as well, and that has the place as a parameter group; empty: there is none."""
    owners = (one.owner for state in states for one in state.places)
    optimizers = (one for one in owners if isinstance(one, torch.optim.Optimizer))
    groups = ((type(one).__name__, group) for one in optimizers for group in one.param_groups)
    return next((name for name, group in groups if group is place.owner), "")


def _text(value: Any) -> str:
    if value is MISSING or value is GONE:
        return repr(value)
    if isinstance(value, (bool, int, float, complex, str, bytes, type(None), tuple)):
        text = repr(value)
        return text if len(text) <= 60 else text[:57] + "..."
    return f"a {type(value).__qualname__}"


def _first(one: Any, entries: list[Any]) -> list[Any]:
    """The same with this one in front."""
    return [one, *(other for other in entries if other is not one)]


class _Known:
    """What is known of one structure of arguments."""

    def __init__(self, structure: Structure, static: int) -> None:
        self.structure = structure
        self.static = static
        self.states: list[State] = []  # most recently used first
        self.changes = _Changes()
        self.restless: Optional[State] = None  # stands for all states while they change at each call
        self.stays = False  # it does, whatever settles
        self.moving: dict[Place, Any] = {}  # what changes at each call, and what it was at the last one


class States:
    """The states of one function; the least recently used structures of arguments are forgotten.

    Threads:  Any. Lists are replaced, never changed: a look may run code of the user's, where another thread comes in between.
              What two calls learn at once is added up.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._known: list[_Known] = []  # most recently used first
        self._next = 0

    def find(self, structure: Structure, static: int = 0) -> tuple[State, Optional[str]]:
        """The state of a call that begins now, and why it is to stay eager, where that is new.

        Each call makes it: a lookup or a call of Python takes as long here as a hundred comparisons of the guard.

        Args:
            static: names the static batch, if it is one.
        """
        known = self._known_for(structure, static)
        if known.restless is not None and (known.stays or not self._has_settled(known)):
            return known.restless, None
        states = known.states
        change: Optional[Place] = None
        for state in states:
            place = state.difference()
            if place is None:
                if state is not states[0]:
                    known.states = _first(state, known.states)
                if state.refusal and not state.is_refused:
                    state.is_refused = True
                    return state, state.refusal
                return state, None
            change = change or place
        if change is not None:
            known.changes.count += 1
            if known.changes.count > MOST_CHANGES:
                return self._rest(known, change)
        state = self._new_state(known)
        known.states = [state, *known.states[: _MOST_STATES - 1]]
        return state, None

    def unfollowed(self) -> list[str]:
        """What was read in any state, and is not compared."""
        return list(dict.fromkeys(what for known in self._known for state in known.states for what in state.unfollowed))

    def keep(self, state: State) -> None:
        """From now on all calls with the arguments of this state's are in it, whatever changes: the function stays eager."""
        for known in self._known:
            if state in known.states:
                known.restless, known.stays = state, True
                known.states = [state]

    def release(self, state: State) -> None:
        """A graph is captured in it: from now on it is compared again."""
        for known in self._known:
            if known.stays and known.restless is state:
                known.restless, known.stays = None, False

    def structure_of(self, number: int) -> Optional[Structure]:
        """Of the arguments of calls in the state of this number."""
        for known in self._known:
            if any(one is not None and one.number == number for one in (known.restless, *known.states)):
                return known.structure
        return None

    def _known_for(self, structure: Structure, static: int) -> _Known:
        all_known = self._known
        for known in all_known:
            if known.static == static and (known.structure is structure or known.structure.same(structure)):
                if known is not all_known[0]:
                    self._known = _first(known, self._known)
                return known
        known = _Known(structure, static)
        self._known = [known, *self._known[: self._capacity - 1]]
        return known

    def _new_state(self, known: _Known) -> State:
        self._next += 1
        return State(self._next, known.changes)

    def _rest(self, known: _Known, place: Place) -> tuple[State, str]:
        change = Change(place, place.before, place.get(), _optimizer_of(place, known.states))
        known.restless = self._new_state(known)
        known.moving = {place: place.get()}
        known.states = known.states[:1]  # none of the others was worth a capture
        reason = f"what it reads changes from call to call: {change.text()}"
        return known.restless, reason

    def _has_settled(self, known: _Known) -> bool:
        """Whether all that moved is as it was at the last call."""
        moved = False
        for place, before in known.moving.items():
            now = place.get()
            if not (now is before or is_same(now, before)):
                known.moving[place] = now
                moved = True
        if moved:
            return False
        known.restless = None
        known.changes.count = MOST_CHANGES - 2  # a few more tries
        return True

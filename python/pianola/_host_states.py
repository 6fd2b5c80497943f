"""Whether what a call read on the host is as it was: the states that a function was met in, each with a number.

A graph freezes what Python read while it was captured. So each call is told by what of that it finds: the same values, the
same graph; others, another one, with warm-up calls of its own. A value that is another one at each call ends that.

An argument that is a number belongs to the structure of the arguments, until a call gives another one: from then on it is
followed (_numbers), and a state is told by what its calls did with it, not by its value.
"""

import sys
from typing import Any, Callable, NamedTuple, Optional

import torch

from . import _host_parts
from ._host_places import GONE, KEYED, MISSING, Place, is_same, with_key
from ._host_reads import HostReads
from ._host_watch import Looks
from ._kept_tensors import guards_of, where_of
from ._late_reads import Seen
from ._load import _C
from ._number_arguments import NumberArguments, changing, tells_types
from ._numbers import Trail, words
from ._structure import Structure
from ._temporary_arguments import may_be_temporary
from ._weak_references import weakly

# New states in a row, none of which saw a replay: beyond that they change as fast as they are captured.
MOST_CHANGES = 8
# New paths that numbers led to, in the same way.
MOST_PATHS = 32
_MOST_STATES = 64  # of one structure of arguments
_MOST_SHAPES = 128  # of tensors, in one state: as many as the library knows signatures of a function
_MOST_COMPARED = 16  # structures of the latest calls, that a new one may differ from in numbers alone
_ENOUGH_ALIKE = 2  # structures of arguments that stay eager for good: one that differs in objects alone runs unseen at first
_MOST_UNSEEN = 256  # calls with the same such objects, until they are looked at as any others are


class _Changes:
    """New states in a row, without a replay, of one structure of arguments."""

    __slots__ = ("count", "paths", "has_replayed")

    def __init__(self) -> None:
        self.count = 0
        self.paths = 0  # of those, the ones that numbers among the arguments led to
        self.has_replayed = False


class State:
    """One state of what is read, and the number that stands for it and for the structure of the arguments."""

    def __init__(self, number: int, changes: _Changes, numbers: Optional[NumberArguments] = None) -> None:
        self.number = number
        self.numbers = numbers  # among the arguments, that are followed
        self.path: Optional[Callable[..., Optional[tuple]]] = None  # of them; None: no call has told
        self._given: set[str] = set()  # them, in different calls
        self.frozen: Optional[Trail] = None  # what graphs of it depend on
        self.table: list[str] = []  # what they have slots for
        self.captures_plainly = ""  # not so when it is captured: why that failed
        self._changes = changes
        self._places: dict[tuple, Place] = {}
        self.guarded: tuple[Optional[_C.HostGuard], list[Place]] = (None, [])  # the guard's places, by their numbers
        self.unfollowed: list[str] = []  # what was read, and is not compared
        self.refusal = ""  # why no graph could be guarded
        self.is_refused = False
        self.returned: list[Optional[str]] = []  # by the last warm-up call: plain_in()
        self.late: dict[tuple, Optional[Seen]] = {}  # of the last warm-up calls, by the shapes of tensors, the latest last
        self.tells_types = False  # of numbers
        self.is_new = True  # no call in it was looked at
        self.looks = Looks()

    def difference(self) -> Optional[Place]:
        """The first place that is not as it was; None where all are."""
        guard, places = self.guarded
        number = -1 if guard is None else guard.check()
        return None if number < 0 else places[number]

    def learn(self, reads: HostReads) -> None:
        """What another call in this state read: the latest look counts."""
        self.is_new = False
        if reads.error:
            self.refusal = f"what it reads on the host cannot be compared at each call: {reads.error}"
        for place in reads.kept.values():
            self._places.pop(place.identity, None)  # where calls before stored the tensor that was there already
        read = [place for place in reads.places if where_of(place) not in reads.kept]  # which may be after the call's own store
        for place in (*read, *guards_of(reads.kept.values()), *reads.handed_on):
            owner = place.owner
            if owner is not GONE and not (place.changed and (place.is_torchs or _is_of_tensors(place))):
                self._places[place.identity] = place
        self.guarded = _guard_of(self._places)
        self.tells_types = self.tells_types or tells_types(reads.executed)
        self.unfollowed += [what for what in reads.unfollowed if what not in self.unfollowed]

    def note_late(self, shapes: tuple, seen: Optional[Seen]) -> None:
        before = self.late.pop(shapes, None)
        if seen is not None and before is not None:
            seen = seen._replace(before=before.values)
        if len(self.late) == _MOST_SHAPES:
            del self.late[next(iter(self.late))]
        self.late[shapes] = seen

    def learn_numbers(self, trail: Trail, values: tuple) -> None:
        """What another call in this state did with the numbers that are followed: the latest call counts."""
        if self.frozen is None:
            self.path = trail.path(len(values))
        if len(self._given) < 2:
            self._given.add(repr(values))

    def freeze_numbers(self, trail: Trail, count: int) -> None:
        """What a captured run did with them."""
        if self.frozen is None:
            self.frozen = Trail()
        self.frozen.add(trail)
        self.path = self.frozen.path(count, self.table)

    def slot_values(self, values: tuple) -> tuple:
        """What graphs of this state have slots for, of numbers that it takes."""
        return () if self.path is None or not self.table else self.path(*values) or ()

    @property
    def saw_numbers_change(self) -> bool:
        return len(self._given) > 1

    def takes(self, values: tuple) -> bool:
        """Whether calls in this state do with these numbers what they did with others."""
        try:
            return self.path is None or self.path(*values) is not None
        except Exception:  # as the calculation does, whose place is in the function
            return False

    def note_replay(self) -> None:
        self._changes.count = self._changes.paths = 0
        self._changes.has_replayed = True

    @property
    def places(self) -> list[Place]:
        return self.guarded[1]


def _other_objects(one: Structure, other: Structure) -> list[Any]:
    """Those of the other, where they differ in objects of the same classes, such as the cache of another text, and in nothing else."""
    pairs = [(a, b) for (_, a), (_, b) in zip(one.frozen, other.frozen)]
    differing = [at for at, (a, b) in enumerate(pairs) if a is not b and type(a) is type(b) and may_be_temporary(a)]
    return [pairs[at][1] for at in differing] if differing and one.same_but(other, differing) else []


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


def _is_compiling() -> bool:
    """Whether torch.compile's code may be met, which is compiled anew for other classes of numbers."""
    frames = sys.modules.get("torch._dynamo.eval_frame")
    return any(one is not None for one in getattr(frames, "cached_backends", {}).values())


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
            return f"{with_key(self.place.name, key)}{whose} changed from {_text(before)} to {_text(now)}{reader}"
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


def _optimizer_of(place: Place, states: list[State]) -> Optional[torch.optim.Optimizer]:
    """That was read as well, and that has the place as a parameter group."""
    owners = (one.owner for state in states for one in state.places)
    optimizers = (one for one in owners if isinstance(one, torch.optim.Optimizer))
    return next((one for one in optimizers if any(group is place.owner for group in one.param_groups)), None)


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

    def __init__(self, structure: Structure, static: int, numbers: Optional[NumberArguments] = None) -> None:
        self.structure = structure
        self.static = static
        self.numbers = numbers  # whose values do not tell it
        self.states: list[State] = []  # most recently used first
        self.changes = _Changes()
        self.restless: Optional[State] = None  # stands for all states while they change at each call
        self.stays = False  # it does, whatever settles
        self.moving: dict[Place, Any] = {}  # what changes at each call, and what it was at the last one

    def is_of(self, structure: Structure) -> bool:
        if self.numbers is not None:
            return self.numbers.fit(self.structure, structure)
        return self.structure is structure or self.structure.same(structure)


class States:
    """The states of one function; the least recently used structures of arguments are forgotten.

    Threads:  Any. Lists are replaced, never changed: a look may run code of the user's, where another thread comes in between.
              What two calls learn at once is added up.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._known: list[_Known] = []  # most recently used first
        self._next = 0
        self._unseen: tuple[list[Any], int] = [], 0  # objects, and the calls with them in a row
        self._apart: dict[Any, tuple[str, str]] = {}  # numbers that are not followed, by their place: the name, and why

    def find(
        self, structure: Structure, static: int = 0, arguments: Optional[tuple[tuple, dict[str, Any]]] = None
    ) -> tuple[State, Optional[str]]:
        """The state of a call that begins now, and why it is to stay eager, where that is new.

        Each call makes it: a lookup or a call of Python takes as long here as a hundred comparisons of the guard.

        Args:
            static: names the static batch, if it is one.
            arguments: of the call, whose numbers may be followed.
        """
        known = self._known_for(structure, static, arguments)
        values = None if known.numbers is None else known.numbers.values(structure)
        if known.restless is not None and (known.stays or not self._has_settled(known)):
            return known.restless, None
        states = known.states
        change: Optional[Place] = None
        # A state that warms up takes values that graphs have been captured for, too.
        for state in states if values is None else sorted(states, key=lambda one: one.frozen is None):
            if values is not None and not state.takes(values):
                continue
            place = state.difference()
            if place is None:
                if state is not states[0]:
                    known.states = _first(state, known.states)
                if state.refusal and not state.is_refused:
                    state.is_refused = True
                    return state, state.refusal
                return state, None
            change = change or place
        if change is not None and not self._has_activated(change, states):
            known.changes.count += 1
            if known.changes.count > MOST_CHANGES:
                return self._rest(known, change)
        elif states and change is None:
            known.changes.paths += 1
            if known.changes.paths > MOST_PATHS:
                self._tell_apart(known, "nearly each value takes the function along a path of its own")
                return self.find(structure, static, arguments)
        state = self._new_state(known)
        known.states = [state, *known.states[: _MOST_STATES - 1]]
        return state, None

    def runs_unseen(self, structure: Structure) -> bool:
        """Whether a call with such arguments is to run eagerly, and nobody watches it, which takes as long as a hundred calls: those
        with other objects of the same classes stay eager, and these are new. They are not kept."""
        stubborn = [one for one in self._known if one.stays]
        if len(stubborn) < _ENOUGH_ALIKE or any(one.structure.same(structure) for one in self._known):
            return False
        found = [objects for objects in (_other_objects(one.structure, structure) for one in stubborn) if objects]
        if len(found) < _ENOUGH_ALIKE:
            return False
        before, calls = self._unseen
        same = len(before) == len(found[0]) and all(one() is other for one, other in zip(before, found[0]))
        try:
            self._unseen = ([weakly(one) for one in found[0]], calls + 1 if same else 1)
        except TypeError:  # of a class without weak references
            return False
        return self._unseen[1] <= _MOST_UNSEEN

    def unfollowed(self) -> list[str]:
        """What was read in any state, and is not compared."""
        return list(dict.fromkeys(what for known in self._known for state in known.states for what in state.unfollowed))

    def numbers(self) -> list[str]:
        """What becomes of numbers among the arguments that change: "args[1] is a parameter of the graph"."""
        told = []
        for known in self._known:
            if known.numbers is not None:
                frozen = [state.frozen for state in known.states if state.frozen is not None]
                told += [f"{name} {words(i, known.numbers.names, frozen)}" for i, name in enumerate(known.numbers.names) if frozen]
        told += [f"{name} has a graph for each value: {why}" for name, why in self._apart.values()]
        return list(dict.fromkeys(told))

    def why_apart(self, name: str) -> str:
        """Why each value of this argument has states of its own; "" where that is not so."""
        return next((why for known, why in self._apart.values() if known == name), "")

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

    def tell_apart(self, state: State, why: str) -> bool:
        """Calls of this state did different things, perhaps because their numbers differ: from now on each value has states, and
        graphs, of its own. @return  False: that is so already."""
        known = next((one for one in self._known if one.numbers is not None and state in one.states), None)
        if known is None:
            return False
        self._tell_apart(known, why)
        return True

    def _tell_apart(self, known: _Known, why: str) -> None:
        assert known.numbers is not None
        for place, name in zip(known.numbers.places, known.numbers.names):
            self._apart[place] = (name, why.partition("\n")[0])
        self._known = [one for one in self._known if one is not known]

    def structure_of(self, number: int) -> Optional[Structure]:
        """Of the arguments of calls in the state of this number."""
        for known in self._known:
            if any(one is not None and one.number == number for one in (known.restless, *known.states)):
                return known.structure
        return None

    def _known_for(self, structure: Structure, static: int, arguments: Optional[tuple[tuple, dict[str, Any]]]) -> _Known:
        all_known = self._known
        for known in all_known:
            if known.static == static and known.is_of(structure):
                if known is not all_known[0]:
                    self._known = _first(known, self._known)
                return known
        known = _Known(structure, static)
        if arguments is not None and structure.frozen:
            known.numbers = self._numbers_in(structure, static, arguments)
        if known.numbers is not None:
            self._known = [one for one in self._known if not self._is_part_of(one, known)]
        self._known = [known, *self._known[: self._capacity - 1]]
        return known

    def _numbers_in(
        self, structure: Structure, static: int, arguments: tuple[tuple, dict[str, Any]]
    ) -> Optional[NumberArguments]:
        """In which it differs from a call before."""
        for known in self._known[:_MOST_COMPARED]:
            if known.static != static or any(state.tells_types for state in known.states):
                continue
            followed = () if known.numbers is None else known.numbers.leaves
            found = changing(known.structure, structure, *arguments, known=followed)
            if found is not None and self._apart.keys().isdisjoint(found.places) and not _is_compiling():
                return found
        return None

    def _is_part_of(self, known: _Known, now: _Known) -> bool:
        """Whether its calls are of another structure now, and it was not worth a graph yet."""
        assert now.numbers is not None
        return known.static == now.static and now.numbers.fit(known.structure, now.structure) and not known.changes.has_replayed

    def _has_activated(self, change: Place, states: list[State]) -> bool:
        """Whether it is an optimizer's number, which replays compute anew from now on: it is no difference any more."""
        optimizer = _optimizer_of(change, states)
        if optimizer is None or not _host_parts.may_be_activated(optimizer):
            return False
        _host_parts.activate(optimizer)
        return True

    def _new_state(self, known: _Known) -> State:
        self._next += 1
        return State(self._next, known.changes, known.numbers)

    def _rest(self, known: _Known, place: Place) -> tuple[State, str]:
        optimizer = _optimizer_of(place, known.states)
        change = Change(place, place.before, place.get(), "" if optimizer is None else type(optimizer).__name__)
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

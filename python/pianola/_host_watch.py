"""What a function does on the host while it runs eagerly: random numbers, clocks, iterators, and what it writes.

A replay skips Python, so that none of it would happen again. The warm-up calls are watched; one that does any of this keeps
the function eager, with the line.
"""

import random
import sys
from functools import partial
from itertools import chain
from types import CodeType, FunctionType
from typing import Any, Callable, Iterator, NamedTuple, Optional, Sequence

import torch
from torch.utils.checkpoint import set_checkpoint_early_stop

from ._audit import files, marks
from ._audit.findings import Findings, Found
from ._audit.hits import take_hits
from ._audit.locate import first_mention
from ._audit.table import Table
from ._errors import refuse, text_of
from ._handed_on import HandedOn, handed_on
from ._host_places import GONE, Place, Store, entries_of, held, is_as_before, is_same
from ._host_reads import HostReads
from ._host_values import compared_bytes_of, has_bytes
from ._kept_tensors import Stores, where_of
from ._process_groups import groups_that_exist
from ._structure import tensors_of

# By rule: what counts even if one call does it, and what counts where calls after the first do so too.
_LASTING = {
    "PG604": "draw on the device, or draw before the call and pass the number as an argument",
    "PG305": "ask the clock outside, and pass the time as an argument or in a tensor",
}
_PASSING = {"PG804": "do it outside, after the call"}
_PASSING_ON_THE_CPU = {
    **_PASSING,
    "PG103": "keep the value on the device (torch.where, masked arithmetic), or leave this part out of the function",
    "PG104": "print what the call returns, outside",
}
_SAID_ONCE = ("warnings.warn",)  # by most of those who call it
_ONCE = "; a replay would not do it again"


class Effects(NamedTuple):
    """Texts of errors, empty where there is nothing; and tensors."""

    lasting: str  # counts even if it is seen once
    passing: str  # counts where it is seen again after the first call
    remade: list[torch.Tensor]  # kept where nobody looks before the next call makes them anew
    only_returns_late_reads: bool = False
    is_no_example: bool = False  # captures take none by it
    begins_anew: bool = False  # other calls of it are parts of the host from now on
    runs_compiled: bool = False  # code that torch.compile made
    given: Sequence[tuple[torch.Tensor, str]] = ()  # tensors whose .data the code sets, and where
    names_gradients: bool = True  # code that it ran
    stored_gradients: Sequence[torch.Tensor] = ()  # leaves into whose .grad it may have stored
    cleared_gradients: Sequence[torch.Tensor] = ()  # whose .grad zero_grad() of torch's has made None


class Looks:
    """What the call before met, of one state: calls in several states may take turns."""

    def __init__(self) -> None:
        self.moving: list[Place] = []  # that held a generator or an iterator then
        self.stores: list[Place] = []  # that its code stores into


class HostWatch:
    """Watches the warm-up calls of one function.

    Args:
        function: what is called.
        warmup: calls until it may be captured.
        handed_on: gets the places where a call stores a tensor that it made of the one which was there.
    """

    def __init__(self, function: Any, warmup: int, handed_on: Optional[HandedOn] = None) -> None:
        self._function = function
        self._warmup = warmup
        self._handed_on = handed_on
        self._calls = 0
        self._writes: set[tuple] = set()  # of the call before, by place
        self._moving: list[Place] = []  # that held a generator or an iterator then
        self._stores: list[Place] = []  # that its code stores into
        self._late: list[Place] = []  # that it first looked at behind a part of the host
        self._kept: dict[tuple, str] = {}  # where the call before stored tensors, with names

    def run(
        self, call: Callable[[], Any], device: str, arguments: tuple[tuple[str, Any], ...] = (), is_first: bool = False, looks: Optional[Looks] = None
    ) -> tuple[Effects, HostReads]:
        """Makes a call. What it raises comes out.

        Args:
            device: the type of device that it computes on.
            arguments: what it is given, by name.
            is_first: no call has met what is read now, so that nothing tells whether it moves.
            looks: of the state that the call is in; it is told of this one.
        """
        table = Table()
        generators, groups = _global_generators(), groups_that_exist()
        looks = Looks() if looks is None else looks
        moving = [(place, marks.mark_of(place.get())) for place in _each_once([*self._moving, *looks.moving])]
        stores = self.stores(looks)
        reads = HostReads(self._function, arguments, device)
        modules = len(sys.modules)
        late = {place.identity: place.get() for place in self._late}
        table.watch.begin()
        try:
            # A recomputation that stops early runs fewer operations than it does under capture.
            with set_checkpoint_early_stop(False), reads:
                reads.returned.append(call())
                if self._handed_on:
                    self._handed_on.check_kept(tensors_of(reads.returned[0]))
        finally:
            table.watch.end()
        for place in reads.places:  # by what the part before it did, which nobody follows
            place.changed |= place.is_late and place.identity in late and not is_same(late[place.identity], place.before)
        findings = Findings()
        take_hits(table, device, 0, findings)
        lasting = [*_told([*findings], _LASTING)]
        passing = [*_told([*findings], _PASSING_ON_THE_CPU if device == "cpu" else _PASSING)]
        passing += _changed_groups(groups, reads)
        if len(sys.modules) != modules:  # what is imported runs once, and may do this: sympy makes a generator
            lasting, passing = [], lasting + passing
        reads.kept = self._kept_by(reads, stores)
        if self._handed_on:
            self._handed_on.check_kept([place.get() for place in reads.kept.values()])
            reads.handed_on = self._handed_on.guards()
        written = [place for place in _written(reads, stores.places) if not (self._handed_on and self._handed_on.explains(place))]
        draws = [*lasting, *_draws(generators, reads), *_moved(moving, reads)]
        effects = self._judge(draws, passing, dict(_writes(reads, written)), reads, is_first or self._calls == 0)
        looks.moving, looks.stores = self._moving, self._stores
        # `passing` holds all but the writes, which effects.passing has as well.
        if not effects.lasting and not passing and self._begins_to_hand_on(reads, written):
            effects = effects._replace(passing="", begins_anew=True)
        return effects, reads

    def _begins_to_hand_on(self, reads: HostReads, written: list[Place]) -> bool:
        """Whether all that the call wrote is what later calls are to be handed on, which they are from now on."""
        if self._handed_on is None or reads.parts_are_users:
            return False
        places = handed_on((place, place.before, place.get()) for place in {_identity(one): one for one in written}.values())
        if places is None or any(id(place.owner) in reads.kept_by_parts for place in places) or not self._handed_on.takes(places):
            return False
        self._handed_on.add(places)
        return True

    def _kept_by(self, reads: HostReads, stores: Stores) -> dict[tuple, Place]:
        kept = _kept(reads, stores)
        return {where: place for where, place in kept.items() if not (self._handed_on and self._handed_on.has(where))}

    def stores(self, looks: Optional[Looks] = None) -> Stores:
        """What its code stores into, as it is now."""
        known = _each_once([*self._stores, *(() if looks is None else looks.stores)])
        return Stores(list(filter(None, map(_again, known))))

    def kept_by_capture(self, reads: HostReads, stores: Stores) -> dict[tuple, Place]:
        """Where a call stored tensors that is captured.

        Raises:
            UsageError: not where the call before did.
        """
        reads.kept = self._kept_by(reads, stores)
        missing = [self._kept[where] for where in self._kept.keys() - reads.kept.keys()]
        for name in missing:  # not so one more: an input is the caller's at each call, and the graph's when it is captured
            refuse(f"the function stores a tensor in {name}, in some of its calls only", "return it, and store it outside")
        return reads.kept

    def _judge(self, draws: list[str], told: list[str], writes: dict[tuple, Callable[[], str]], reads: HostReads, is_first: bool) -> Effects:
        """What is written, and read as well, makes each call one of another signature: it is seen here that it goes on."""
        again = (text() for place, text in writes.items() if place in self._writes and not reads.learned)
        lasting = next(chain(draws, again if self._calls + 2 >= self._warmup else ()), "")
        stores = [place for store in reads.stores if (place := _place_of(store)) is not None]
        moving = [place for place in reads.places if _is_moving(place.get())]
        unseen = chain(map(_write_text, stores), map(_moving_text, moving)) if is_first else ()  # what was before it, nobody has seen
        passing = next(chain(told, (text() for text in writes.values()), unseen), "")
        self._calls += 1
        self._kept = {where: place.name for where, place in reads.kept.items()}
        self._writes, self._stores = (set(), []) if reads.learned else (set(writes), stores)
        self._late = [place for place in reads.places if place.is_late]
        self._moving = moving
        stored = [] if self._handed_on is None else self._handed_on.stored()
        kept = [*_remade(reads), *(place.get() for place in reads.kept.values()), *stored]
        return Effects(lasting, passing, kept, begins_anew=reads.learned, runs_compiled=reads.runs_compiled, given=_given(reads.stores),
                       names_gradients=reads.gradients.are_named or reads.runs_compiled, stored_gradients=reads.gradients.stored,
                       cleared_gradients=reads.gradients.cleared)  # fmt: skip


def _each_once(places: list[Place]) -> list[Place]:
    return list({place.identity: place for place in places}.values())


_PLAIN = (bool, int, float, complex, str)


def plain_in(value: Any) -> list[Optional[str]]:
    """Entries of tuples, lists and dicts in their order, as text, since who holds a number that was read is asked for; None in place
    of what is no plain value."""
    if type(value) in (tuple, list, dict):
        return [one for entry in (value.values() if type(value) is dict else value) for one in plain_in(entry)]
    return [repr(value) if type(value) in _PLAIN else None]


def check_returned(reads: HostReads, before: list[Optional[str]], now: list[Optional[str]]) -> None:
    """What a part of the host returns, and the function too, a replay would return again as it was in the capture.

    Args:
        before: plain_in() what the last warm-up call returned.
        now: the same of the call that is captured, where numbers that replays know have types of their own.

    Raises:
        UsageError: they differ.
    """
    if not reads.kept_by_parts:
        return
    for one, other in zip(before, now):
        if other is not None and other != one:
            what = f"the function returns a value of the host, {one} in one call and {other} in the next, that what runs again"
            refuse(f"{what} at each replay may have given it", "read it behind the call, where it is kept")


def _told(found: list[Found], fixes: dict[str, str]) -> Iterator[str]:
    for one in found:
        if one.rule in fixes and one.op not in _SAID_ONCE:
            call = f" ({one.op})" if one.op and one.op not in one.what else ""
            yield text_of(f"{one.what}{call}{_ONCE}", fixes[one.rule], _where(one.place), one.rule)


def _where(place: files.Place) -> str:
    return f"{place.function} at {place.file.rpartition('/')[2]}:{place.line}" if place.known else ""


# --- Random numbers, iterators ---


def _global_generators() -> dict[str, Any]:
    generators: dict[str, Any] = {"random": random._inst}
    numpy_random = getattr(sys.modules.get("numpy.random"), "mtrand", None)
    if numpy_random is not None:
        generators["numpy.random"] = numpy_random._rand
    return {name: (one, marks.mark_of(one)) for name, one in generators.items()}


def _draws(generators: dict[str, Any], reads: HostReads) -> Iterator[str]:
    """Python's own methods are seen at work, with the line; of others the state tells."""
    for name, (generator, before) in generators.items():
        if not marks.same(before, marks.mark_of(generator)):
            place = first_mention(name.rpartition(".")[2], reads.executed)
            what = f"the function draws random numbers of {name} on the host{_ONCE}"
            yield text_of(what, _LASTING["PG604"], _where(place), "PG604")


def _changed_groups(before: tuple, reads: HostReads) -> Iterator[str]:
    """A rank that replays would not meet the others where eager ones make a process group together."""
    if groups_that_exist() == before:
        return
    places = (first_mention(name, reads.executed) for name in ("new_group", "destroy_process_group"))
    where = next((_where(place) for place in places if place.known), "")
    yield text_of(f"the function makes or ends a process group{_ONCE}", "make it once, outside", where, "PG803")


_NEVER_MOVING = (torch.Tensor, torch.nn.Module, type, FunctionType, CodeType, *marks.CONTAINERS, *_PLAIN, type(None))


def _is_moving(value: Any) -> bool:
    if isinstance(value, _NEVER_MOVING):
        return False
    mark = marks.mark_of(value)
    return mark is not None and mark.kind in ("random", "iterator")


def _moving_text(place: Place) -> str:
    return text_of(f"the function has to do with {place.name}, which goes on at each call, perhaps", "take from it outside", place.where, "PG803")


def _moved(moving: list[tuple[Place, Optional[marks.Mark]]], reads: HostReads) -> Iterator[str]:
    for place, before in moving:
        if before is None or marks.same(before, marks.mark_of(place.get())):
            continue
        if before.kind == "random":
            what, fix, rule = f"the function draws random numbers of {place.name} on the host", _LASTING["PG604"], "PG604"
        else:
            what, fix, rule = f"the function takes the next entry of {place.name}", "take it outside, and pass it", "PG803"
        yield text_of(f"{what}{_ONCE}", fix, place.where, rule)


# --- Writes ---


def _writes(reads: HostReads, written: list[Place]) -> Iterator[tuple[tuple, Callable[[], str]]]:
    """What the call changed, of what it reads and of what its code is known to store into, and the text of each. One is
    told at most: a call that imports a package changes thousands."""
    read = {id(place): (before, after) for place, before, after in reads.changes()}
    for place in written:
        if id(place) in read:
            yield _identity(place), partial(_change_text, place, reads, *read[id(place)])
        else:
            yield _identity(place), partial(_write_text, place)


def _written(reads: HostReads, stores: list[Place]) -> Iterator[Place]:
    """Places that are not as the call found them, but those where it keeps what it made."""
    for place in reads.places:
        if place.changed and not _is_remade(place, reads) and where_of(place) not in reads.kept:
            yield place
    for place in stores:
        if place.owner is not GONE and where_of(place) not in reads.kept and not is_as_before(place):
            yield place


def _kept(reads: HostReads, stores: Stores) -> dict[tuple, Place]:
    torchs = {where_of(place) for place in reads.places if place.changed and (place.is_torchs or _is_remade(place, reads))}
    if reads.parts_are_users:  # replays store behind them: what they use of it they would find too late
        return {}
    kept = stores.kept(reads.places).items()
    return {where: place for where, place in kept if where not in torchs and id(place.owner) not in reads.kept_by_parts}


def _is_remade(place: Place, reads: HostReads) -> bool:
    """What torch's own code puts into a module, as hooks of weight_norm and spectral_norm do before each forward."""
    if place.kind != "attribute" or not isinstance(place.owner, torch.nn.Module):
        return False
    if not all(one is None or isinstance(one, (torch.Tensor, type(GONE))) for one in (place.before, place.get())):
        return False
    return not any(store.kind == "attribute" and store.key == place.key for store in reads.stores)


def _remade(reads: HostReads) -> Iterator[torch.Tensor]:
    stored = {store.key for store in reads.stores if store.kind == "attribute"}
    modules = {id(place.owner): place.owner for place in reads.places if isinstance(place.owner, torch.nn.Module)}
    for module in modules.values():
        yield from (one for name, one in vars(module).items() if isinstance(one, torch.Tensor) and name not in stored)


def _given(stores: list[Store]) -> list[tuple[torch.Tensor, str]]:
    data = [(held(store.owner), store) for store in stores if store.kind == "attribute" and store.key == "data"]
    return [(owner, f"{store.name}, {store.where}") for owner, store in data if isinstance(owner, torch.Tensor)]


def _identity(place: Place) -> tuple:
    return place.kind, id(place.owner), place.name


_KINDS = {"global": "entry", "cell": "cell", "attribute": "attribute", "item": "entry"}


def _place_of(store: Store) -> Optional[Place]:
    """What is there now; None where the owner is not known, as of what the call made itself."""
    owner = held(store.owner)
    if owner is None or owner is GONE or not files.is_users(store.code):
        return None
    if store.kind == "item" and has_bytes(owner):
        return _again(Place("bytes", owner, compared_bytes_of, store.name, store.code, store.line, None))
    kind, key = _KINDS.get(store.kind, "contents"), store.key
    if kind == "contents" or (store.kind == "item" and (key is None or not isinstance(owner, dict))):
        if not isinstance(owner, marks.CONTAINERS):
            return None
        kind, key = "contents", None
    return _again(Place(kind, owner, key, store.name, store.code, store.line, () if kind == "contents" else None))


def _again(place: Place) -> Optional[Place]:
    """The same, as it is now."""
    owner = place.owner
    if owner is GONE:
        return None
    now = entries_of(owner) if place.kind == "contents" else place.get()  # whose values are not kept alive
    return Place(place.kind, owner, place.key, place.name, place.code, place.line, now)


def _line_of(place: Place, reads: HostReads) -> str:
    """Who stores there, else who reads it; of what torch's objects write, who mentions the object."""
    owner = place.owner
    for store in reads.stores:
        if held(store.owner) is owner and (place.kind == "contents" or store.key == place.key or place.kind == "cell"):
            return store.where
    if place.code is not None and files.kind_of_file(place.code.co_filename) & files.TORCH:
        name = place.name.partition(".")[0].partition("[")[0]
        return _where(first_mention(name, reads.executed)) or place.where
    return place.where


def _change_text(place: Place, reads: HostReads, before: Any, after: Any) -> str:
    if place.is_late:
        what = f"the function reads {place.name} behind a step of an optimizer or a scheduler that may change it; a replay would not see that"
        return text_of(what, "read it before that step, or after the call", place.where, "PG803")
    return _write_text(place, _line_of(place, reads), before, after)


def _write_text(place: Place, where: str = "", before: Any = None, after: Any = None) -> str:
    numbers = isinstance(before, (bool, int, float, str)) and isinstance(after, (bool, int, float, str))
    change = f" from {before!r} to {after!r}" if numbers and len(repr(before)) + len(repr(after)) < 60 else ""
    fix = "do it after the call, or keep it in a tensor on the device; return what is computed"
    return text_of(f"the function changes {place.name}{change}{_ONCE}", fix, where or place.where, "PG803")

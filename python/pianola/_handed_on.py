"""Attributes and entries whose tensor each call makes of the one before: `self.mean = 0.9 * self.mean + 0.1 * x.mean(0)`.

A graph reads from memory that stays, and a call reads what the one before stored. So while a call is observed, captured or replayed,
each such place holds a tensor that stays, with the values of the one that was there; and the graph copies there what the function
stores. Between calls the place holds a tensor of the user's. That is as in eager where nobody can tell one from the other: nobody else
has the tensor that was there, and nobody has kept the one that stays. A call for which that is not so is left as it is.
"""

import itertools
import sys
import threading
import time
from typing import Any, Iterable, Optional

import torch

from ._errors import refuse
from ._host_places import GONE, MISSING, Place, dictionary_of
from ._kept_tensors import Where, where_of
from ._references import more_in_a_frame

_MOST = 256  # places of one function
_MOST_LEFT = 64  # calls in a row that run the function as it is, until all places are given up
_MOST_RENEWED = 8  # other tensors that stay, as for another shape, until a place is given up
_numbers = itertools.count(1)
_Pair = tuple[torch.Tensor, torch.Tensor]
_KINDS = (torch.Tensor, torch.nn.Parameter)


def handed_on(changes: Iterable[tuple[Place, Any, Any]]) -> Optional[list[Place]]:
    """The places of a call, if all that it changed are such: a tensor was there, and another is now."""
    found: list[Place] = []
    for place, before, now in changes:
        if place.is_late:
            return None
        if place.kind in ("attribute", "entry"):
            pairs = [(place.kind, place.key, before, now)]
        elif place.kind == "contents" and type(place.owner) is dict and dict(before).keys() == dict(now).keys():
            entries = dict(now)
            pairs = [("entry", key, value, entries[key]) for key, value in before if entries[key] is not value]
        else:
            return None
        for kind, key, before, now in pairs:
            if kind == "entry" and type(place.owner) is not dict:
                return None
            if type(now) not in _KINDS or not (before is GONE or type(before) is type(now)):
                return None
            found.append(Place(kind, place.owner, key, place.name, place.code, place.line, now))
    return found if len(found) <= _MOST else None


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether each of its elements has a place of its own, and there are none between them."""
    if tensor.layout is not torch.strided:
        return False
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape) if size > 1):
        if stride != expected:
            return False
        expected *= size
    return True


def _is_plain(tensor: Any) -> bool:
    """Whether a copy of its values says all about it."""
    if type(tensor) not in _KINDS or tensor.layout is not torch.strided or tensor.is_inference() or tensor.is_conj() or tensor.is_neg():
        return False
    if vars(tensor) or tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None):
        return False
    wants_grad = type(tensor) is torch.nn.Parameter
    return bool(is_dense(tensor) and tensor.is_leaf and tensor.grad is None and (wants_grad or not tensor.requires_grad))


def _are_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (
        type(one) is type(other)
        and one.shape == other.shape
        and one.dtype == other.dtype
        and one.device == other.device
        and one.stride() == other.stride()
        and one.requires_grad == other.requires_grad
    )


def _like(tensor: torch.Tensor) -> torch.Tensor:
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return torch.nn.Parameter(made, tensor.requires_grad) if type(tensor) is torch.nn.Parameter else made


def _copy(given: Iterable[Optional[_Pair]]) -> None:
    """The values of each second into the first. Keeps no reference."""
    pairs = [pair for pair in given if pair is not None]
    if pairs:
        torch._foreach_copy_([one.detach() for one, _ in pairs], [other.detach() for _, other in pairs])


_Counts = tuple[int, int, int]
_PATIENCE = 20  # milliseconds, until a thread of autograd has dropped what it was given


def _counts(tensor: torch.Tensor) -> _Counts:
    """References to it: Python's, with those of this call; C++'s; and those to its memory."""
    uses = tensor._use_count()  # type: ignore[attr-defined]
    return sys.getrefcount(tensor) - more_in_a_frame(), uses, torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)


def _counts_in(variables: dict[Any, Any], key: Any) -> _Counts:
    return _counts(variables[key])


# Of a tensor that one entry has, and nobody else.
_ALONE = {kind: _counts_in({"": torch.nn.Parameter(torch.zeros(1)) if kind is torch.nn.Parameter else torch.zeros(1)}, "") for kind in _KINDS}


def _memory_of(tensors: Iterable[Any]) -> list[int]:
    return [one.untyped_storage()._cdata for one in tensors if isinstance(one, torch.Tensor) and one.layout is torch.strided]


class _HandedOn:
    """One such place."""

    def __init__(self, place: Place) -> None:
        self.where: Where = where_of(place)
        self._place = place
        self.stays: Any = None
        self.number = 0  # of that one, among all that ever stayed
        self._aside: Any = None  # gets the values in its stead, where it is to stay as the call found it
        self._found: Any = None  # the user's tensor, while a call runs
        self._known: _Counts = (0, 0, 0)  # references to what stays, but for the place's, when the call began
        self._known_to_found = 0  # Python's, to the user's
        self._renewed = 0
        self.is_given_up = False

    @property
    def _variables(self) -> dict[Any, Any]:
        owner = self._place.owner
        if owner is GONE:
            return {}
        return owner if self._place.kind == "entry" else dictionary_of(owner) or {}

    def now(self) -> Any:
        return self._variables.get(self._place.key, MISSING)

    def _put(self, tensor: torch.Tensor) -> None:
        self._variables[self._place.key] = tensor

    def takes(self, tensor: Any) -> bool:
        """Whether the tensor that stays can hold its values."""
        return self.stays is not None and _is_plain(tensor) and _are_alike(self.stays, tensor)

    def is_alone(self) -> bool:
        """Whether nobody else has the tensor that is there."""
        kind = type(self.now())
        return kind in _ALONE and _is_plain(self.now()) and _counts_in(self._variables, self._place.key) == _ALONE[kind]

    # Each of these gives what is to be copied: into which tensor, and from which.

    def prepare(self) -> _Pair:
        """A call begins."""
        self._found = self.now()
        if not self.takes(self._found):
            self.stays, self._aside, self.number = _like(self._found), _like(self._found), next(_numbers)
            self._renewed += 1
            self.is_given_up = self._renewed > _MOST_RENEWED
        self.stays.grad = None
        self._known, self._known_to_found = _counts(self.stays), sys.getrefcount(self._found)
        return self.stays, self._found

    def enter(self) -> None:
        self._put(self.stays)

    def finish(self, is_capture: bool) -> Optional[_Pair]:
        """The function has run: the graph copies what it stored. A call that is observed copies it aside, to do the same operations."""
        now = self.now()
        if now is self.stays or not self.takes(now):
            if is_capture:
                refuse(f"the function stores a tensor in {self._place.name}, in some of its calls only", "let each call store one")
            return None
        if not is_capture:
            return self._aside, now
        self._put(self.stays)
        return self.stays, now

    def leave(self) -> None:
        """The function is run as it is: nothing has happened yet."""
        self.settle(captured=None)

    def exit(self, captured: Optional[bool]) -> Optional[_Pair]:
        """The call is over. Where the place holds what stays, the user's tensor gets its values, and its place: a replay stored what
        nobody else has, or an observed call stored nothing.

        Args:
            captured: whether the function ran for a capture; None: it did not run.
        """
        is_there, was_observed = self.now() is self.stays, captured is False
        is_found_kept = sys.getrefcount(self._found) >= self._known_to_found  # the place's is gone
        if not captured and self._is_kept(is_there, was_observed):
            self.stays = self._found = None  # who keeps it, keeps it as it is
            return None
        if not is_there:
            self._found = None
            return None
        if is_found_kept and not was_observed:  # another thread has taken it
            self._found = _like(self.stays)
        self._found.grad = self.stays.grad if was_observed else None
        self.stays.grad = None
        return self._found, self.stays

    def settle(self, captured: Optional[bool]) -> None:
        """The place gets the user's tensor back."""
        if self._found is None:
            return
        self._put(self._found)
        self._found = None
        if not captured and _counts(self.stays)[0] > self._known[0]:  # another thread has taken it
            self.stays = None

    def _is_kept(self, is_there: bool, was_observed: bool) -> bool:
        """Whether the call has kept the tensor that stays. Not to be asked of a captured one, whose Python did what that of an observed
        call did: its graph has references. In a replay none of C++ can come."""
        python, others, memory = self._known
        python += is_there
        for _ in range(_PATIENCE if was_observed else 1):
            now = _counts(self.stays)
            if now[0] <= python and (not was_observed or (now[1] <= others and now[2] <= memory)):
                return False
            time.sleep(0.001)
        return True

    def abandon(self) -> None:
        """The call threw: who knows what it has kept."""
        self.stays = self._found = None


class HandedOn:
    """The places of one function. One thread at a time runs it, where there are any."""

    def __init__(self) -> None:
        self.places: list[_HandedOn] = []  # asked for at each call of any function
        self._given_up: set[Where] = set()
        self._lock = threading.RLock()
        self._depth = 0  # of calls in calls
        self._entered: list[_HandedOn] = []  # those that hold what stays
        self._left = 0  # calls in a row in which they did so for nothing
        self._ran: Optional[bool] = None  # the function, in this call: whether for a capture

    def __bool__(self) -> bool:
        return bool(self.places)

    def add(self, places: Iterable[Place]) -> None:
        self.places += map(_HandedOn, places)

    def takes(self, places: list[Place]) -> bool:
        """Whether all of them are new, and may be followed."""
        known = self._given_up | {one.where for one in self.places}
        return bool(places) and not any(where_of(place) in known for place in places)

    def __enter__(self) -> None:
        self._lock.acquire()
        self._depth += 1
        if self._depth > 1:
            return
        try:
            self._ran = None
            if torch.is_inference_mode_enabled() or not all(one.is_alone() for one in self.places):
                return
            _copy(one.prepare() for one in self.places)
            self._entered = list(self.places)
            for one in self._entered:
                one.enter()
        except BaseException:
            self._end_call()
            raise

    def __exit__(self, kind: Any, *error: Any) -> None:
        try:
            if self._depth > 1:
                return
            entered, self._entered = self._entered, []
            if kind is not None:
                for one in entered:
                    one.abandon()
                return
            self._left = 0 if entered else self._left
            _copy(one.exit(self._ran) for one in entered)
            for one in entered:
                one.settle(self._ran)
        finally:
            self._end_call()

    def _end_call(self) -> None:
        self._depth -= 1
        if self._depth == 0 and any(one.is_given_up for one in self.places):
            self._given_up.update(one.where for one in self.places if one.is_given_up)
            self.places = [one for one in self.places if not one.is_given_up]
        self._lock.release()

    def leave(self) -> None:
        """The function is run as it is, and its call is over when it returns."""
        entered, self._entered = self._entered, []
        self._left += bool(entered)
        for one in entered:
            one.leave()
            one.is_given_up = one.is_given_up or self._left > _MOST_LEFT

    def finish(self, is_capture: bool) -> None:
        """A run ends that is observed, or one of a capture, which may be its warm-up."""
        self._ran = is_capture
        _copy(one.finish(is_capture) for one in self._entered)

    def check_capture(self, kept: Iterable[Any]) -> None:
        """Of what a captured run returned or kept.

        Raises:
            UsageError: the next replay would write it.
        """
        if self._are_mixed(kept):
            refuse("the function keeps a tensor that the next call is to find changed", "let it keep a copy: tensor.clone()")

    # --- Of an observed call, at its end ---

    def explains(self, place: Place) -> bool:
        """Whether what changed there is handed on."""
        places = {one.where for one in self._entered if not one.is_given_up and one.takes(one.now())}
        if place.kind != "contents":
            return where_of(place) in places
        owner = place.owner
        if type(owner) is not dict or dict(place.before).keys() != owner.keys():
            return False
        return all(("entry", id(owner), key) in places for key, value in place.before if owner[key] is not value)

    def has(self, where: Where) -> bool:
        return any(one.where == where for one in self._entered)

    def stored(self) -> list[torch.Tensor]:
        """What the call left in the places."""
        return [one.now() for one in self._entered if one.takes(one.now())]

    def guards(self) -> list[Place]:
        """What a graph relies on: that the places hold what stays, in this call."""
        known = self.what_stays()
        return [Place("value", self, self.what_stays, "what is handed on", None, 0, known)] if known else []

    def what_stays(self) -> tuple[int, ...]:
        return tuple([one.number for one in self._entered])

    def check_kept(self, kept: Iterable[Any]) -> None:
        """Gives all up where the call kept or returned what the next call is to find changed."""
        if self._are_mixed(kept):
            for one in self._entered:
                one.is_given_up = True

    def _are_mixed(self, kept: Iterable[Any]) -> bool:
        if not self._entered:
            return False
        stay = set(_memory_of(one.stays for one in self._entered))
        stored = _memory_of(one.now() for one in self._entered if one.now() is not one.stays)
        keep_one_twice = len(set(stored)) < len(stored)
        keep_what_was_found = bool(stay.intersection(stored))
        others = set(_memory_of(kept))
        return keep_one_twice or keep_what_was_found or bool(others & stay) or bool(others.intersection(stored))

    def forget(self) -> None:
        self.places, self._given_up = [], set()

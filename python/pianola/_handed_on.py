"""Attributes and entries whose tensor each call makes of the one before: `self.mean = 0.9 * self.mean + 0.1 * x.mean(0)`.

A graph reads from memory that stays, and a call reads what the one before stored. So while a call is observed, captured or replayed,
each such place holds a tensor that stays, with the values of the one that was there; and the graph copies there what the function has
stored. Between calls the place holds another tensor in each call, as in eager: who keeps one keeps its values.
"""

from typing import Any, Iterable, Optional

import torch

from ._errors import refuse
from ._host_places import GONE, MISSING, Place, dictionary_of
from ._kept_tensors import Where, where_of
from ._structure import tensors_of

_MOST = 256  # places of one function
_MOST_RENEWED = 8  # other tensors that stay, as for another shape, until a place is given up
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


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether each of its elements has a place of its own, and there are none between them."""
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape) if size > 1):
        if stride != expected:
            return False
        expected *= size
    return True


def _is_plain(tensor: Any) -> bool:
    """Whether a copy says all about it."""
    if type(tensor) not in _KINDS or tensor.layout is not torch.strided or tensor.is_inference():
        return False
    wants_grad = type(tensor) is torch.nn.Parameter
    return bool(_is_dense(tensor) and tensor.is_leaf and tensor.grad is None and not tensor._backward_hooks and (wants_grad or not tensor.requires_grad))


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


def _copy(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """The values of each second into the first."""
    if pairs:
        torch._foreach_copy_([one.detach() for one, _ in pairs], [other.detach() for _, other in pairs])


def _memory_of(tensors: Iterable[Any]) -> list[int]:
    return [one.untyped_storage()._cdata for one in tensors if isinstance(one, torch.Tensor) and one.layout is torch.strided]


class _HandedOn:
    """One such place."""

    def __init__(self, place: Place) -> None:
        self.where: Where = where_of(place)
        self._place = place
        self.stays: Optional[torch.Tensor] = None
        self._aside: Any = None  # gets the values in its stead, where it is to stay as the call found it
        self._renewed = 0
        self.is_given_up = False

    def _variables(self) -> dict[Any, Any]:
        owner = self._place.owner
        if owner is GONE:
            return {}
        return owner if self._place.kind == "entry" else dictionary_of(owner) or {}

    def now(self) -> Any:
        return self._variables().get(self._place.key, MISSING)

    def holds_what_stays(self) -> bool:
        return self.stays is not None and self.now() is self.stays

    def takes(self, tensor: Any) -> bool:
        """Whether the tensor that stays can hold its values."""
        return self.stays is not None and _is_plain(tensor) and _are_alike(self.stays, tensor)

    def is_followed(self) -> bool:
        return not self.is_given_up and self.takes(self.now())

    def guard(self) -> Place:
        place = self._place
        return Place(place.kind, place.owner, place.key, place.name, place.code, place.line, self.stays)

    # Each of these puts a tensor in the place, and gives what its values are to be copied from.

    def enter(self) -> Optional[tuple[torch.Tensor, torch.Tensor]]:
        """A call begins: the tensor that stays gets the place of the one that is there."""
        now = self.now()
        if now is self.stays or not _is_plain(now):
            return None
        if not self.takes(now):
            self.stays, self._aside = _like(now), _like(now)
            self._renewed += 1
            self.is_given_up = self._renewed > _MOST_RENEWED
        self._variables()[self._place.key] = self.stays
        assert self.stays is not None
        return self.stays, now

    def finish(self, is_capture: bool) -> Optional[tuple[torch.Tensor, torch.Tensor]]:
        """A run ends: the graph copies what it stored to the tensor that stays. One that is observed does the same operations, and
        leaves all as it is."""
        now = self.now()
        if now is self.stays or not self.takes(now):
            return None
        assert self.stays is not None
        if not is_capture:
            return self._aside, now
        self._variables()[self._place.key] = self.stays
        return self.stays, now

    def leave(self) -> Optional[tuple[torch.Tensor, torch.Tensor]]:
        """The function is not replayed, or the call is over: the place gets a tensor of its own."""
        if self.stays is None or not self.holds_what_stays():
            return None
        self._variables()[self._place.key] = fresh = _like(self.stays)
        return fresh, self.stays


class HandedOn:
    """The places of one function. Calls of several threads change them as they would in eager: each as it comes."""

    def __init__(self) -> None:
        self._places: list[_HandedOn] = []
        self._given_up: set[Where] = set()

    def __bool__(self) -> bool:
        return bool(self._places)

    def add(self, places: Iterable[Place]) -> None:
        self._places += map(_HandedOn, places)

    def takes(self, places: list[Place]) -> bool:
        """Whether all of them are new, and may be followed."""
        known = self._given_up | {one.where for one in self._places}
        return bool(places) and not any(where_of(place) in known for place in places)

    def __enter__(self) -> None:
        _copy([pair for one in self._places if (pair := one.enter()) is not None])

    def __exit__(self, kind: Any, *error: Any) -> None:
        self.leave()
        if kind is not None:  # who knows what it has kept
            for one in self._places:
                one.stays = None
        if any(one.is_given_up for one in self._places):
            self._given_up.update(one.where for one in self._places if one.is_given_up)
            self._places = [one for one in self._places if not one.is_given_up]

    def leave(self) -> None:
        """The function is run as it is: what it finds it may keep."""
        _copy([pair for one in self._places if (pair := one.leave()) is not None])

    def finish(self, is_capture: bool) -> None:
        """A run ends that is observed, or one of a capture, which may be its warm-up."""
        _copy([pair for one in self._places if (pair := one.finish(is_capture)) is not None])

    def check_capture(self, kept: Iterable[Any]) -> None:
        """Of what a captured run returned or kept.

        Raises:
            UsageError: the next replay would write it.
        """
        if self._places and self.are_mixed(kept):
            refuse("the function keeps a tensor that the next call is to find changed", "let it keep a copy: tensor.clone()")

    # --- Of an observed call, at its end ---

    def explains(self, place: Place) -> bool:
        """Whether what changed there is handed on."""
        places = {one.where: one for one in self._places}
        if place.kind != "contents":
            one = places.get(where_of(place))
            return one is not None and one.is_followed()
        owner = place.owner
        if type(owner) is not dict or dict(place.before).keys() != owner.keys():
            return False
        changed = [key for key, value in place.before if owner[key] is not value]
        entries = [places.get(("entry", id(owner), key)) for key in changed]
        return all(one is not None and one.is_followed() for one in entries)

    def has(self, where: Where) -> bool:
        return any(one.where == where for one in self._places)

    def stored(self) -> list[torch.Tensor]:
        """What the call left in the places."""
        return [one.now() for one in self._places if one.is_followed()]

    def guards(self) -> list[Place]:
        """What a graph relies on: that each place holds the tensor that stays."""
        return [one.guard() for one in self._places if one.stays is not None]

    def are_mixed(self, kept: Iterable[Any]) -> bool:
        """Whether tensors that the call kept or returned lie where another of these does, or where one lay that it found."""
        stay = set(_memory_of(one.stays for one in self._places))
        stored = _memory_of(one.now() for one in self._places if not one.holds_what_stays())
        others = _memory_of(kept)
        return len(set(stored)) != len(stored) or bool(stay & {*stored, *others} or {*stored} & {*others})

    def check_result(self, result: Any) -> None:
        """Gives all up where the caller has what the next call is to find changed, or a backward pass that may follow wants it."""
        results = tensors_of(result)
        if _saved_for(results).intersection(_memory_of(one.stays for one in self._places)):
            self._give_up()
        self.check_kept(results)

    def check_kept(self, kept: list[torch.Tensor]) -> None:
        """The same where a call kept it."""
        if self.are_mixed(kept):
            self._give_up()

    def _give_up(self) -> None:
        for one in self._places:
            one.is_given_up = True

    def forget(self) -> None:
        self._places, self._given_up = [], set()


def _saved_for(results: Iterable[torch.Tensor]) -> set[int]:
    """The memory of tensors that the history of results keeps for a backward pass: of one that was made, nothing."""
    found: set[int] = set()
    nodes = [tensor.grad_fn for tensor in results if tensor.grad_fn is not None]
    seen = set(nodes)
    for node in nodes:  # which grows
        for name in dir(node):
            if name.startswith("_saved_") or name == "saved_tensors":
                found.update(_saved_as(node, name))
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                nodes.append(following)
    return found


def _saved_as(node: Any, name: str) -> list[int]:
    try:
        value = getattr(node, name)
    except RuntimeError:  # it was freed
        return []
    return _memory_of(value if isinstance(value, (list, tuple)) else (value,))

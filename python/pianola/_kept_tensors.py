"""Attributes and entries of dicts that each call gives a tensor that it made: `self.attention = scores.softmax(-1)`.

What is in them is a result of the call like what it returns. So a graph gives it out as well, and each replay stores it where the
call stored it. That is right where each call stores, and none uses what the one before left: the old tensor dies with the store.
Whatever a tensor is asked besides (its shape, or whether there is one) is compared at each call.
"""

import collections
import functools
import sys
from typing import Any, Callable, Iterable, Iterator, NamedTuple, Optional, Sequence

import torch

from ._host_places import GONE, MISSING, Place, dictionary_of, held, hold, is_as_before, outline_of
from ._structure import Structure

Where = tuple[str, int, Any]


class Stores:
    """What the code of a function stores into, as it is when a call begins."""

    def __init__(self, places: list[Place]) -> None:
        self.places = places
        self._holders = {where_of(place): _holders(place) for place in places}

    def kept(self, reads: Iterable[Place]) -> dict[Where, Place]:
        """Where the call stored a tensor, of these and of what it read; each as it was when the call began, if that is known."""
        stored = {where_of(place): place for place in self.places if place.owner is not GONE}
        changed = {where_of(place): place for place in reads if place.changed}
        changed.update((where, place) for where, place in stored.items() if not is_as_before(place))
        lost = collections.Counter(id(place.before) for place in changed.values())
        return {where: place for where, place in changed.items() if _is_kept(place, self._holders.get(where), lost)}


def _holders(place: Place) -> Optional[tuple[int, int, int]]:
    """How many references there are to the tensor that was there when the call began: Python's, C++'s and those to its memory."""
    tensor = place.before
    if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided:
        return None
    storage = tensor.untyped_storage()._cdata
    return sys.getrefcount(tensor), tensor._use_count(), torch._C._storage_Use_Count(storage)  # type: ignore[attr-defined]


def where_of(place: Place) -> Where:
    return place.kind, id(place.owner), place.key


def _is_kept(place: Place, holders: Optional[tuple[int, int, int]], lost: "collections.Counter[int]") -> bool:
    if place.kind not in ("attribute", "entry") or type(place.get()) is not torch.Tensor:
        return False
    if place.kind == "entry" and type(place.owner) is not dict:
        return False
    before = place.before
    if before is None or before is MISSING:
        return True
    if before is GONE:
        return place.tensor is not None
    if holders is None:
        return False
    places = lost[id(before)]
    del before
    now = _holders(place)  # somebody else holds it, as before: no operation, and nothing that the call stored or returns
    return now is not None and now[0] + places == holders[0] and now[1:] == holders[1:]


def guards_of(kept: Iterable[Place]) -> Iterator[Place]:
    """What may be asked of the tensor that was there."""
    for place in kept:
        look = _Look(place.kind, hold(place.owner), place.key)
        before = place.tensor or place.before
        yield Place("value", place.owner, look, f"the tensor {place.name}", place.code, place.line, before)


class _Look(NamedTuple):
    kind: str
    owner: Any
    key: Any

    def __call__(self) -> Any:
        owner = held(self.owner)
        if owner is GONE:
            return GONE
        variables = owner if self.kind == "entry" else dictionary_of(owner) or {}
        value = variables.get(self.key, MISSING)
        return outline_of(value) or value


class Kept(NamedTuple):
    """What a call returns, and what it kept."""

    result: Any
    tensors: list[torch.Tensor]
    stores: Sequence[Callable[[torch.Tensor], None]]


class KeptStructure(Structure):
    """The structure of such a result, whose tensors are followed by those that it kept."""

    __slots__ = ("result", "stores")

    def __init__(self, result: Structure, tensors: int, stores: Sequence[Callable[[torch.Tensor], None]]) -> None:
        for name in ("spec", "size", "frozen"):
            setattr(self, name, getattr(result, name))
        self.outline = None  # nobody else can put it together
        self.tensors = tensors
        self.result = result
        self.stores = stores

    def rebuild(self, tensors: Sequence[torch.Tensor], numbers: tuple = ()) -> Any:
        for store, tensor in zip(self.stores, tensors[self.tensors :]):
            store(tensor)
        return self.result.rebuild(tensors[: self.tensors], numbers)

    def same(self, other: Structure) -> bool:
        return isinstance(other, KeptStructure) and self.result.same(other.result) and len(self.stores) == len(other.stores)

    def difference(self, now: Structure, names: Sequence[str] = ()) -> str:
        found = self.result.difference(now.result if isinstance(now, KeptStructure) else now, names)
        return "where it stores tensors" if found == "nothing" else found


def with_kept(result: Any, kept: Iterable[Place]) -> Any:
    places = list(kept)
    if not places:
        return result
    stores = [functools.partial(_put, place.kind, hold(place.owner), place.key) for place in places]
    return Kept(result, [place.get() for place in places], stores)


def _put(kind: str, reference: Any, key: Any, tensor: torch.Tensor) -> None:
    owner = held(reference)
    variables = owner if kind == "entry" else None if owner is GONE else dictionary_of(owner)
    if variables is not None:
        variables[key] = tensor

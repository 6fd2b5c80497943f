"""What a call made for itself: its objects, where nothing from before leads to them, and whatever only these hold.

No later call meets them, also where the caller is given them or the collector of cycles has still to find them. Told as that
collector does it: by the references to an object that are known, against all that there are.
"""

import collections
import gc
import itertools
import weakref
from types import CellType
from typing import Any

import torch

from ._host_places import SIMPLE, Place, Store, cell_content, held, holders_of
from ._torch_abi import is_of_a_backward, is_of_a_checkpoint

_ATOMS = (torch.Tensor, *SIMPLE)
_SKIPPED = frozenset({str, int, float, bool, bytes, type(None), type})  # most of what is met
_BY_RESULT = 2  # references to the result: that of HostReads, and that of whoever made the call


def drop_own(made: list[weakref.ref], returned: list[Any], places: list[Place], stores: list[Store]) -> set[int]:
    """Takes out the places and stores whose owners are the call's own.

    Args:
        made: objects that were met first in their own __init__.
        returned: the result of the call, which the caller of the call holds as well; empty if it raised.

    Returns:
        The ids of its own objects, which are its own until it returns.
    """
    seeds = {id(one): one for one in map(_alive, made) if one is not None}
    if not seeds and all(map(_is_atom, returned)):
        return set()
    ours = _held_by(places, stores)
    while True:
        own, references = _led_to(seeds, returned, ours)
        # Each is believed at first: a cycle leads to itself. Not so one that something else holds.
        leaked = [number for number in seeds if holders_of(seeds, number) - 1 > references[number]]
        if not leaked:
            break
        own.clear()
        for number in leaked:
            del seeds[number]
    places[:] = [place for place in places if id(place.owner) not in own]
    stores[:] = [store for store in stores if id(held(store.owner)) not in own]
    return set(own)


def drop_of_checkpoints(places: list[Place]) -> None:
    """The same of what each checkpoint() makes for its backward pass: autograd holds it, and it holds what was saved."""
    places[:] = [place for place in places if not is_of_a_checkpoint(place.owner) and not _leads_to_a_checkpoint(place.owner)]


def drop_of_backwards(began: int, places: list[Place], stores: list[Store]) -> None:
    """The same of what it makes for the backward passes of its results. Replays give results without such a history.

    Args:
        began: see is_of_a_backward().
    """
    places[:] = [place for place in places if not is_of_a_backward(place.owner, began)]
    stores[:] = [store for store in stores if not is_of_a_backward(held(store.owner), began)]


def _leads_to_a_checkpoint(owner: Any) -> bool:
    return isinstance(owner, CellType) and is_of_a_checkpoint(cell_content(owner, None))


def _alive(reference: weakref.ref) -> Any:
    return reference()


def _led_to(seeds: dict[int, Any], returned: list[Any], ours: collections.Counter) -> tuple[dict[int, Any], collections.Counter]:
    """The seeds, and what nothing but them, the result, places and stores holds; and how many references to each are known."""
    references = collections.Counter(ours)
    own, met = dict(seeds), {}
    references.update({id(one): _BY_RESULT for one in returned})
    met.update({id(one): one for one in returned if id(one) not in own and not _is_atom(one)})
    touched, pending = set(met), list(own)
    while pending or touched:
        for number in pending:
            one = None
            for one in gc.get_referents(own[number]):
                if not _is_atom(one):
                    references[id(one)] += 1
                    if id(one) not in own:
                        met[id(one)] = one
                        touched.add(id(one))
            one = None
        pending = [number for number in touched if holders_of(met, number) == references[number]]
        own.update((number, met.pop(number)) for number in pending)
        touched.clear()
    return own, references


def _held_by(places: list[Place], stores: list[Store]) -> collections.Counter:
    """How often they hold what, by ids: never more than they do, or what is from before would seem to be the call's."""
    held_by_places = (one for place in places for one in place.holds())
    parts = itertools.chain(held_by_places, (store.owner for store in stores))
    return collections.Counter(map(id, parts))


def _is_atom(value: Any) -> bool:
    return type(value) in _SKIPPED or isinstance(value, _ATOMS)


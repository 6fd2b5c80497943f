"""What a call makes and drops: no later call reads it, so none of its places count.

Places keep containers alive, which nothing refers to weakly, and containers keep tensors. A call that is followed would need memory
for all activations that it ever put into a tuple; so what it has dropped is looked for while it runs, too.
"""

import collections
import sys
import types
from typing import Any, Mapping

from ._host_places import GONE, Place, Store, held, holders_of
from ._weak_references import Weak

_NOTHING_ELSE: Mapping[int, int] = types.MappingProxyType({})
LEAST_BYTES = 8 << 20  # of tensors in containers that have come, between two looks
_LEAST_SHARE = 16  # of all that have come: a look takes the longer, the more places there are


def drop_dead(places: list[Place], stores: list[Store], beside: Mapping[int, int] = _NOTHING_ELSE) -> None:
    """Takes out those whose owners are dead, or would be without these places and stores.

    Containers and cells are kept alive by their places and stores. One that nothing else holds goes with them, and so do
    then the objects in it, and what these hold.

    Args:
        beside: further references to owners that do not count, by their ids.
    """
    count = None
    while len(places) + len(stores) != count:
        count = len(places) + len(stores)
        strong = [place for place in places if not place.is_weak]
        ours = collections.Counter(id(place.owner) for place in strong)
        ours.update(id(place.key) for place in strong if place.key is place.owner)
        ours.update(id(store.owner) for store in stores)
        ours.update(beside)
        owners = {id(place.owner): place.owner for place in strong}
        dead = {number for number in owners if holders_of(owners, number) <= ours[number]}
        places[:] = [place for place in places if (place.owner is not GONE if place.is_weak else id(place.owner) not in dead)]
        stores[:] = [one for one in stores if one.keeps_nothing or _holders([one.owner]) - _NO_HOLDERS > ours[id(one.owner)]]


def _holders(one: list) -> int:
    return sys.getrefcount(one[0])


_NO_HOLDERS = _holders([object()])


class TensorsCome:
    """Counts the bytes of tensors in containers that a call reads: each time that a good deal has come it is time to look."""

    def __init__(self) -> None:
        self._all = self._since = 0

    def note(self, nbytes: int) -> None:
        self._all += nbytes
        self._since += nbytes

    def is_time_to_look(self) -> bool:
        if self._since < max(LEAST_BYTES, self._all // _LEAST_SHARE):
            return False
        self._since = 0
        return True


def drop_dead_while_it_runs(places: list[Place], stores: list[Store], known: dict[Any, Place], owners: dict[int, Any],
                            names: dict[int, tuple[Any, str]], store_keys: set[tuple]) -> None:  # fmt: skip
    """As drop_dead(), and out of what the call is followed with.

    Args:
        known: the same places by identity.
        owners: theirs, by ids, which are then free for others.
        names: of objects, by ids.
        store_keys: of the stores; the second of each is the id of an owner.
    """
    count = None
    while len(places) + len(stores) != count:
        count = len(places) + len(stores)
        beside = collections.Counter(number for number, owner in owners.items() if type(owner) is not Weak)
        beside.update(number for number, (reference, _) in names.items() if type(reference) is not Weak)
        stored = {id(store.owner) for store in stores}
        drop_dead(places, stores, beside)
        stored -= {id(store.owner) for store in stores}
        store_keys -= {key for key in store_keys if key[1] in stored} if stored else set()
        alive = {id(place.owner) for place in places}
        for key in [key for key, place in known.items() if id(place.owner) not in alive]:
            del known[key]
        for number in [number for number in owners if number not in alive]:
            del owners[number]
            stored.add(number)
        for number in stored - alive:
            names.pop(number, None)

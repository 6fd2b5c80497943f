"""What a call makes and drops: no later call reads it, so none of its places count.

Places keep containers alive, which nothing refers to weakly, and containers keep tensors. A call that is followed would need memory
for all activations that it ever put into a tuple; so what it has dropped is looked for while it runs, too: now and then among the containers
that had tensors when they were met, and before a backward pass, which may need the most memory of all, among all of them.
"""

import collections
import sys
from typing import Any, Collection, Mapping

from ._host_places import GONE, KEYED, LISTED, Entry, Place, Store, holders_of, nbytes_of
from ._weak_references import Weak

LEAST_BYTES = 8 << 20  # of tensors in containers that have come, between two looks
_LEAST_SHARE = 16  # of all that have come


def drop_dead(places: list[Place], stores: list[Store]) -> None:
    """Takes out those whose owners are dead, or would be without these places and stores.

    Containers and cells are kept alive by their places and stores. One that nothing else holds goes with them, and so do
    then the objects in it, and what these hold.
    """
    count = None
    while len(places) + len(stores) != count:
        count = len(places) + len(stores)
        strong = [place for place in places if not place.is_weak]
        ours: collections.Counter[int] = collections.Counter()
        for place in strong:
            ours[id(place.owner)] += place.times_held()
        ours.update(id(store.owner) for store in stores)
        owners = {id(place.owner): place.owner for place in strong}
        dead = {number for number in owners if holders_of(owners, number) <= ours[number]}
        places[:] = [place for place in places if (place.owner is not GONE if place.is_weak else id(place.owner) not in dead)]
        stores[:] = [one for one in stores if one.keeps_nothing or _holders([one.owner]) - _NO_HOLDERS > ours[id(one.owner)]]


def _holders(one: list) -> int:
    return sys.getrefcount(one[0])


_NO_HOLDERS = _holders([object()])


class Containers:
    """The containers that a call has met. Places keep them alive, and they their tensors."""

    def __init__(self) -> None:
        self._all = self._since = 0  # bytes of tensors
        self._met: dict[int, Any] = {}
        self._with_tensors: set[int] = set()  # when they were met, or with such containers; by ids
        self._places: dict[int, list[tuple[Any, Place]]] = collections.defaultdict(list)  # by owner, with what is known of them by

    def note(self, known: Any, place: Place, owner: Any, value: Any) -> None:
        """A new place, and what was found there."""
        if place.is_weak or not isinstance(owner, (*KEYED, *LISTED)):
            return
        self._met[id(owner)] = owner
        self._places[id(owner)].append((known, place))
        parts = value if place.kind == "contents" else (value,)
        parts = [one for part in parts for one in (part if type(part) is Entry else (part,))]
        nbytes = sum(map(nbytes_of, parts))
        if nbytes or any(id(part) in self._with_tensors for part in parts):
            self._with_tensors.add(id(owner))
        self._all += nbytes
        self._since += nbytes

    def clear(self) -> None:
        self._met.clear()
        self._with_tensors.clear()
        self._places.clear()

    def is_time_to_look(self) -> bool:
        if self._since < max(LEAST_BYTES, self._all // _LEAST_SHARE):
            return False
        self._since = 0
        return True

    def drop_dead(self, stores: list[Store], known: dict[Any, Place], owners: dict[int, Any], names: dict[int, tuple[Any, str]],
                  store_keys: set[tuple], also_others: bool = False) -> None:  # fmt: skip
        """Those with tensors that nobody else holds go, also out of what the call is followed with; their places have no owner any more.

        Args:
            known: places by identity.
            owners: theirs, by ids.
            names: of objects, by ids.
            store_keys: of the stores; the second of each is the id of an owner.
            also_others: those, too, that had none when they were met, or are only stored into: they may have been filled since.
        """
        stored = collections.Counter(id(store.owner) for store in stores)
        gone = set()
        looked_at: Collection[int] = self._with_tensors
        if also_others:
            self._met.update((id(one.owner), one.owner) for one in stores if isinstance(one.owner, (*KEYED, *LISTED)))
            looked_at = self._met
        while dead := [number for number in looked_at if self._is_dead(number, stored, owners, names)]:
            for number in dead:
                for key, place in self._places.pop(number, ()):
                    place.let_go()
                    known.pop(key, None)
                owners.pop(number, None)
                names.pop(number, None)
                if stored.pop(number, 0):
                    stores[:] = [store for store in stores if id(store.owner) != number]
                    gone.add(number)
                del self._met[number]
                self._with_tensors.discard(number)
        if gone:
            store_keys -= {key for key in store_keys if key[1] in gone}

    def _is_dead(self, number: int, stored: Mapping[int, int], owners: dict[int, Any], names: dict[int, tuple[Any, str]]) -> bool:
        places = sum(place.times_held() for _, place in self._places.get(number, ()))
        ours = places + stored[number] + (number in owners) + (number in names)
        return holders_of(self._met, number) <= ours

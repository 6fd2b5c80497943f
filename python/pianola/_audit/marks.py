"""Marks: what a value is, briefly, so that two looks at a place can be compared without keeping anything alive."""

import collections
import enum
import itertools
import operator
import random
import sys
import types
import warnings
import weakref
from typing import Any, Iterable, NamedTuple, Optional

import torch

from .._weak_references import may_be_weak

_NUMBERS = (bool, int, float, complex, str, bytes, type(None), enum.Enum, torch.dtype, torch.device)
CONTAINERS = (dict, list, tuple, set, collections.deque)
_ITERABLES: tuple[Any, ...] = ([], (), range(0), range(1 << 70), {}, {}.values(), {}.items(), set(), "", reversed([]))
_COUNTED = tuple(type(iter(one)) for one in _ITERABLES)
_NESTED: tuple[Any, ...] = (zip, map, filter, enumerate, itertools.cycle, itertools.chain, itertools.islice, itertools.repeat,
                            itertools.starmap, itertools.accumulate, itertools.takewhile, itertools.dropwhile,
                            itertools.compress, itertools.zip_longest, itertools.product, itertools.permutations,
                            itertools.combinations, itertools.combinations_with_replacement)  # fmt: skip
_ENTRIES = 64  # of a container that are looked at
_INNER_ENTRIES = 8  # of one inside another
_ARRAY_BYTES = 4096


class Mark(NamedTuple):
    """Equal for two looks exactly if nothing changed in between."""

    kind: str  # "tensor", "number", "container", "iterator", "random"
    value: Any

    def text(self) -> str:
        """For evidence: "3", "a list of 4"."""
        if self.kind == "container":
            return f"a {self.value[0]} with {self.value[1]} entr{'y' if self.value[1] == 1 else 'ies'}"
        text = repr(self.value)
        return text if len(text) <= 60 else text[:57] + "..."


class TensorMark:
    """The same tensor object, as long as it lives; nothing that lives equals one that died."""

    __slots__ = ("_reference",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self._reference = weakref.ref(tensor)

    def get(self) -> Optional[torch.Tensor]:
        return self._reference()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorMark) and self._reference is other._reference

    def __hash__(self) -> int:
        return id(self._reference)

    def __repr__(self) -> str:
        return "a tensor"


def is_number(value: Any) -> bool:
    return isinstance(value, _NUMBERS)


def is_container(value: Any) -> bool:
    return isinstance(value, CONTAINERS)


def mark_of(value: Any) -> Optional[Mark]:
    """None for what is not compared: functions, objects, which are looked into instead."""
    if isinstance(value, _NUMBERS):
        return Mark("number", value)
    if isinstance(value, torch.Tensor):
        return Mark("tensor", TensorMark(value))
    if isinstance(value, CONTAINERS):
        return Mark("container", _outline(value))
    if isinstance(value, random.Random):
        return None if isinstance(value, random.SystemRandom) else Mark("random", hash(value.getstate()))
    if isinstance(value, itertools.count):
        return Mark("iterator", repr(value))
    if isinstance(value, _COUNTED):
        return Mark("iterator", operator.length_hint(value))
    if isinstance(value, types.GeneratorType):
        return Mark("iterator", _generator(value))
    if isinstance(value, _NESTED):
        return Mark("iterator", _nested(value))
    if hasattr(type(value), "_num_yielded") or "_num_yielded" in getattr(value, "__dict__", ()):  # of a DataLoader
        return Mark("iterator", value._num_yielded)
    return _of_numpy(value)


def entries_of(container: Any) -> list[tuple[Any, Any]]:
    """(key, value), the first and the last ones; none of sets."""
    if isinstance(container, dict):
        return list(itertools.islice(container.items(), 4 * _ENTRIES))
    if isinstance(container, set):
        return []
    last = max(_ENTRIES, len(container) - 1)
    indices = [*range(min(len(container), _ENTRIES)), *range(last, len(container))]
    return [(i, container[i]) for i in indices]


def _outline(container: Any) -> tuple:
    entries = itertools.islice(container, 4 * _ENTRIES if isinstance(container, dict) else _ENTRIES)
    kind = next(one.__name__ for one in CONTAINERS if isinstance(container, one))
    return kind, len(container), _Members(entries)


class _Members:
    """Which objects they are, in their order; nothing that lives equals one that died. Addresses alone would not do: what
    takes the place of an entry that was freed is often given its address. Of objects it keeps weak references; numbers and
    strings, which hold nothing, themselves. Lists and tuples have no weak references: they are known by their address, and
    moved ones by what is inside too."""

    __slots__ = ("ids", "_held")

    def __init__(self, values: Iterable[Any], inner: bool = True) -> None:
        ids: list[int] = []
        held: list[Any] = []
        for value in values:
            stand_in = _stand_in(value)
            ids.append(-id(value) if stand_in is _NONE else id(stand_in))
            held.append(_Members(_first(value), False) if inner and stand_in is _NONE and is_container(value) else stand_in)
        self.ids = tuple(ids)
        self._held = held

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Members) and self.ids == other.ids

    def __hash__(self) -> int:
        return hash(self.ids)

    def has(self, other: "_Members", i: int) -> bool:
        """Whether the i-th of the others is one of these."""
        one = other._held[i]
        return any(
            mine == other.ids[i] and (not isinstance(one, _Members) or one == held)
            for mine, held in zip(self.ids, self._held)
        )


_NONE = object()


def _stand_in(value: Any) -> Any:
    """The same one for the same object, and for no other object while it is held."""
    if isinstance(value, _NUMBERS):
        return value
    try:
        return weakref.ref(value) if may_be_weak(value) else _NONE
    except TypeError:
        return _NONE


def _first(container: Any) -> list[Any]:
    values = container.values() if isinstance(container, dict) else container
    return list(itertools.islice(values, _INNER_ENTRIES))


def has_other_members(before: Mark, after: Mark) -> bool:
    """Whether a container got or lost entries, or moved them; not where an entry was replaced in its place."""
    kind, length, old = before.value
    other, new_length, new = after.value
    if kind != other or length != new_length:
        return True
    if kind in ("dict", "set"):
        return set(old.ids) != set(new.ids)
    moved = [i for i in range(len(old.ids)) if old.ids[i] != new.ids[i]]
    return any(old.has(new, i) for i in moved)


def _generator(generator: types.GeneratorType) -> tuple:
    frame = generator.gi_frame
    if frame is None:
        return ("over",)
    variables = frame.f_locals
    inner = tuple(mark_of(one) for one in variables.values() if isinstance(one, (*_COUNTED, *_NESTED, itertools.count)))
    mark = frame.f_lasti, tuple(variables), _Members(variables.values()), inner
    if isinstance(variables, dict):  # before Python 3.13 a copy that the frame keeps, and with it what the variables held
        variables.clear()
    return mark


def _nested(iterator: Any) -> tuple:
    """Of one that goes over others, or counts by itself."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            parts = iterator.__reduce__()
    except Exception:  # it tells nothing of itself: whoever has it is taken to move it
        return (object(),)
    return tuple(_part(one) for part in parts if isinstance(part, tuple) for one in part)


def _part(value: Any) -> Any:
    mark = mark_of(value)
    return id(value) if mark is None else mark


def _of_numpy(value: Any) -> Optional[Mark]:
    numpy = sys.modules.get("numpy")
    if numpy is None or not hasattr(numpy, "ndarray"):
        return None
    if isinstance(value, numpy.generic):
        return Mark("number", value.item())
    if isinstance(value, numpy.ndarray):
        return Mark("number", _Array(value)) if value.dtype != object else None
    randoms = sys.modules.get("numpy.random")
    if randoms is None:
        return None
    if isinstance(value, randoms.Generator):
        return Mark("random", repr(value.bit_generator.state))
    if isinstance(value, randoms.RandomState):
        state = value.get_state(legacy=False)
        return Mark("random", (state["state"]["key"].tobytes(), state["state"]["pos"], state["has_gauss"]))
    return None


class _Array:
    """The first numbers of an array, which does not stay alive."""

    def __init__(self, array: Any) -> None:
        self._bytes = array.ravel()[: _ARRAY_BYTES // max(1, array.itemsize)].tobytes()
        self._shape = array.shape
        self._text = repr(array.ravel()[:4].tolist())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Array) and (self._shape, self._bytes) == (other._shape, other._bytes)

    def __hash__(self) -> int:
        return hash(self._bytes)

    def __repr__(self) -> str:
        return f"an array {self._text}"


def same(one: Optional[Mark], other: Optional[Mark]) -> bool:
    if one is None or other is None:
        return one is other
    return one.kind == other.kind and (one.value is other.value or _equal(one.value, other.value))


def _equal(one: Any, other: Any) -> bool:
    try:
        return type(one) is type(other) and bool(one == other or (one != one and other != other))  # NaN is NaN
    except Exception:  # a type whose values cannot be compared
        return False

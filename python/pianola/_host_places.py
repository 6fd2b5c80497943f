"""Places on the host: where a call reads a value, or stores one, and what was there."""

import collections
import dataclasses
import enum
import functools
import os
import sys
import types
import weakref
from types import CodeType
from typing import Any, Callable, Iterator, Optional

import torch

from ._audit.once import once_per
from ._load import _C
from ._replaced import original_of
from ._weak_references import Weak, weakly

SIMPLE = (bool, int, float, complex, str, bytes, type(None), enum.Enum, torch.dtype, torch.device, torch.layout,
           torch.memory_format, range, slice, type(Ellipsis), type(NotImplemented), CodeType)  # fmt: skip
KEYED = (dict,)
LISTED = (list, tuple, set, frozenset, collections.deque)


class _Missing:
    def __repr__(self) -> str:
        return "nothing"


MISSING: Any = _Missing()  # the place is empty
GONE: Any = _Missing()  # the object that was there has died
UNKNOWN: Any = _Missing()  # what a property or a descriptor gives: its own code is followed


# Most of what is held, by its exact class.
_HELD_ITSELF = frozenset({bool, int, float, str, type(None), dict, *LISTED, types.MethodType, CodeType})


def hold(value: Any) -> Any:
    """A reference that keeps no tensor, module or object of the user alive."""
    if type(value) in _HELD_ITSELF:
        return value
    if isinstance(value, SIMPLE) or isinstance(value, KEYED) or type(value) in LISTED:
        return value
    if isinstance(value, (weakref.ref, types.MethodType)):  # a method is made anew at each look
        return value
    try:
        return weakly(value)
    except TypeError:
        return value


def held(reference: Any) -> Any:
    if type(reference) is not Weak:
        return reference
    value = reference()
    return GONE if value is None else value


def with_key(name: str, key: Any) -> str:
    """"config['depth']". A tensor or an object has no repr() here: it would run operations, or the user's code, in the call
    that is watched."""
    if isinstance(key, SIMPLE) or (isinstance(key, tuple) and all(isinstance(one, SIMPLE) for one in key)):
        return f"{name}[{key!r}]"
    shape = f" of shape {list(key.shape)}" if isinstance(key, torch.Tensor) else ""
    return f"{name}[a {type(key).__qualname__}{shape}]"


def behind(value: Any) -> Any:
    """What a weak proxy stands for; else the value itself."""
    if type(value) not in weakref.ProxyTypes:
        return value
    try:
        return value.__init__.__self__
    except (ReferenceError, AttributeError):
        return UNKNOWN


_DEAD = weakly(_Missing())  # no reference any more


class Place:
    """Where a value was read.

    Kinds: "entry" of a dict; "attribute" in an object's __dict__; "class": an attribute that a class or its bases have;
    "slot": one that the class keeps in a slot; "cell" of a closure; "contents": all entries of a container; "function":
    code, defaults and closure of a function; "bytes" of an array; "value": what `key()` returns.
    """

    __slots__ = ("kind", "key", "name", "code", "line", "_owner", "_before", "changed", "is_torchs", "is_late", "is_unseen", "tensor")

    def __init__(self, kind: str, owner: Any, key: Any, name: str, code: Optional[CodeType], line: int, before: Any) -> None:
        self.kind = kind
        self.key = key
        self.name = name
        self.code = code
        self.line = line
        self._owner = hold(owner)
        self._before = _hold_all(before) if kind in ("contents", "function") else hold(before)
        self.changed = False  # by the call itself
        self.is_late = False  # first looked at behind a part that replays run again, which may have written there
        self.is_unseen = False  # read by what may run in a backward pass, and by nothing else
        self.tensor = outline_of(before)  # what it was, which may be gone
        self.is_torchs = False  # an attribute of an object of torch's, that no code of the user's reads

    @property
    def owner(self) -> Any:
        """The dict, object, class, cell or container; GONE where it has died."""
        return held(self._owner)

    def let_go(self) -> None:
        """Its owner is dead. A key may hold it as well: see times_held()."""
        self._owner, self._before, self.key = _DEAD, (), None

    @property
    def is_weak(self) -> bool:
        """Whether it does not keep its owner alive."""
        return type(self._owner) is Weak

    def times_held(self) -> int:
        """References to an owner that it keeps alive."""
        given = self.key.args if isinstance(self.key, functools.partial) else (self.key,)
        return 1 + sum(one is self._owner for one in given)

    @property
    def before(self) -> Any:
        """What the call found; of "contents" a tuple of entries, for dicts of (key, value). MISSING: nothing was there."""
        return tuple(map(_held_entry, self._before)) if self.kind in ("contents", "function") else held(self._before)

    @property
    def identity(self) -> tuple:
        """Equal for two looks at one place."""
        return self.kind, id(self.owner), self.name if self.kind == "value" else self.key, type(self.key)

    @property
    def where(self) -> str:
        """ "train.py:12 in step": who reads it."""
        return "" if self.code is None else f"{os.path.basename(self.code.co_filename)}:{self.line} in {self.code.co_name}"

    def get(self) -> Any:
        """What is there now, in the form of `before`."""
        owner = self.owner
        return GONE if owner is GONE else _GETTERS[self.kind](owner, self.key)

    def holds(self) -> Iterator[Any]:
        """What it keeps alive."""
        yield self._owner
        yield self.key
        yield self._before
        if self.kind in ("contents", "function"):
            for one in self._before:
                yield one
                if type(one) is Entry:
                    yield from one
        elif self.kind == "value" and isinstance(self.key, functools.partial):
            yield from self.key.args

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name}>"


def outline_of(value: Any) -> Any:
    """All that Python may ask of a plain tensor without its values; None of what is none."""
    if type(value) is not torch.Tensor:
        return None
    return tuple(value.shape), str(value.dtype), str(value.device), str(value.layout)


def _hold_all(values: tuple) -> tuple:
    return tuple([Entry(value[0], hold(value[1])) if type(value) is Entry else hold(value) for value in values])


def _held_entry(value: Any) -> Any:
    return (value[0], held(value[1])) if type(value) is Entry else held(value)


class Entry(tuple):
    """(key, value) of a dict."""

    def __new__(cls, key: Any, value: Any) -> "Entry":
        return super().__new__(cls, (key, value))


def nbytes_of(value: Any) -> int:
    """Of a plain tensor; else 0."""
    return value.nbytes if type(value) is torch.Tensor else 0


def entries_of(container: Any) -> tuple:
    if isinstance(container, KEYED):
        return tuple([Entry(key, value) for key, value in dict.items(container)])
    kind = next(one for one in LISTED if isinstance(container, one))
    return tuple(kind.__iter__(container))


def _plain(entries: tuple) -> tuple:
    return tuple([tuple(one) if type(one) is Entry else one for one in entries])


def in_class(kind: type, name: str) -> Any:
    for base in kind.__mro__:
        if name in base.__dict__:
            return original_of(base.__dict__[name])
    return MISSING


def dictionary_of(value: Any) -> Optional[dict]:
    """An object's own attributes, whatever its class says of them."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except (AttributeError, TypeError):
        return None
    return found if isinstance(found, dict) else None


def is_plain(value: Any) -> bool:
    """Whether nothing can be read of it but its value: a number, or a tensor to which nobody gave attributes."""
    return isinstance(value, SIMPLE) or (isinstance(value, torch.Tensor) and not dictionary_of(value))


def cell_content(cell: Any, key: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return MISSING


def slot_of(owner: Any, key: str) -> Any:
    descriptor = in_class(type(owner), key)
    try:
        return descriptor.__get__(owner, type(owner))
    except AttributeError:
        return MISSING


@once_per
def slots_of(kind: Any) -> tuple[str, ...]:
    return tuple(name for base in kind.__mro__ for name, one in vars(base).items() if isinstance(one, types.MemberDescriptorType))


def parts_of_function(function: types.FunctionType) -> tuple:
    return (function.__code__, function.__defaults__, function.__kwdefaults__, function.__closure__)


_GETTERS: dict[str, Callable[[Any, Any], Any]] = {
    "entry": lambda owner, key: original_of(owner.get(key, MISSING)),
    "attribute": lambda owner, key: original_of((dictionary_of(owner) or {}).get(key, MISSING)),
    "class": in_class,
    "slot": slot_of,
    "cell": cell_content,
    "contents": lambda owner, key: _plain(entries_of(owner)),
    "function": lambda owner, key: parts_of_function(owner),
    "bytes": lambda owner, key: key(owner),
    "value": lambda owner, key: key(),
}


def is_same(one: Any, other: Any) -> bool:
    """Whether a place is as it was: the same object, or numbers and texts that no program can tell apart."""
    return one is other or _C.same_value(one, other)


def is_as_before(place: Place) -> bool:
    before, now = place.before, place.get()
    if place.kind not in ("contents", "function"):
        return before is now or is_same(before, now)
    if type(now) is not tuple or len(before) != len(now):
        return False
    for one, other in zip(before, now):
        if type(one) is tuple and place.kind == "contents" and isinstance(place.owner, KEYED):
            if not (is_same(one[0], other[0]) and is_same(one[1], other[1])):
                return False
        elif not (one is other or is_same(one, other)):
            return False
    return True


def holders_of(objects: dict[int, Any], number: int) -> int:
    """References to an object, beside the dictionary that it is looked up in."""
    return sys.getrefcount(objects[number]) - _IN_A_DICTIONARY


_SAMPLE = {0: object()}
_IN_A_DICTIONARY = sys.getrefcount(_SAMPLE[0])


@dataclasses.dataclass
class Store:
    """A place that the code of the call stores into, whether it came to that or not.

    `kind` and `key` as in StoreSite; `owner` is the dict of globals, the cell, or the object or container; None where it
    is not known, as for what a call returned.
    """

    kind: str
    owner: Any
    key: Any
    name: str
    code: CodeType
    line: int

    @property
    def keeps_nothing(self) -> bool:
        return self.owner is None or type(self.owner) is Weak

    @property
    def where(self) -> str:
        return f"{os.path.basename(self.code.co_filename)}:{self.line} in {self.code.co_name}"

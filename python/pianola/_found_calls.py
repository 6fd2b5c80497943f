"""Parts that stay eager, and that nobody has marked: what stands in the places of modules and functions while a step is observed or
recorded.

A part is one for all steps that have found it, so that what stands in a place is taken away by the last of them.
"""

import functools
import gc
import threading
import types
import weakref
from types import CodeType
from typing import Any, Callable, Iterator, NamedTuple, TypeVar, Union

import torch

from ._called_modules import IMPLEMENTATION
from ._eager import EagerPart
from ._load import _C
from ._replaced import STANDS_IN_FOR

Part = TypeVar("Part", bound="FoundPart")
_parts: "weakref.WeakValueDictionary[int, FoundPart]" = weakref.WeakValueDictionary()  # by the ids of modules and functions
_parts_lock = threading.Lock()


def _weakly(value: Any) -> Any:
    return weakref.ref(value) if isinstance(value, torch.nn.Module) else value


def _strongly(value: Any) -> Any:
    return value() if type(value) is weakref.ref else value


class FoundPart(EagerPart):
    """Calls of a module or a function, of any thread. Those that run no step of a graph are what they were."""

    is_found = True

    def __init__(self, target: Any) -> None:
        reference, called = weakref.ref(target), self._called

        def call(*args: Any, **kwargs: Any) -> Any:  # which a graph keeps: it holds nothing of the user's
            alive = reference()
            assert alive is not None, "it is called, or its parameters are the graph's"
            return called(alive)(*map(_strongly, args), **{key: _strongly(one) for key, one in kwargs.items()})

        call.__qualname__ = self.name = self._name_of(target)
        super().__init__(call)
        self._reference = reference
        self._lock = threading.Lock()
        self._open = 0

    @classmethod
    def of(cls: "type[Part]", target: Any) -> "Part":
        """That of a module or function."""
        with _parts_lock:
            known = _parts.get(id(target))
            if not isinstance(known, cls) or known._reference() is not target:
                known = _parts[id(target)] = cls(target)
            return known

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not _C.islands_are_open():
            return self._function(*args, **kwargs)
        return super().__call__(*map(_weakly, args), **{key: _weakly(one) for key, one in kwargs.items()})

    def stand_in(self) -> None:
        with self._lock:
            self._open += 1  # before what may fail: step_aside() follows
            if self._open == 1:
                self._put()

    def step_aside(self) -> None:
        with self._lock:
            self._open -= 1
            if self._open == 0:
                self._take_away()

    @staticmethod
    def _called(target: Any) -> Callable[..., Any]:
        raise NotImplementedError

    @staticmethod
    def _name_of(target: Any) -> str:
        raise NotImplementedError

    def _put(self) -> None:
        raise NotImplementedError

    def _take_away(self) -> None:
        raise NotImplementedError


class FoundModule(FoundPart):
    @staticmethod
    def _called(target: torch.nn.Module) -> Callable[..., Any]:
        return target._call_impl

    @staticmethod
    def _name_of(target: torch.nn.Module) -> str:
        return type(target).__qualname__

    def _put(self) -> None:
        if (module := self._reference()) is not None:
            vars(module)[IMPLEMENTATION] = self

    def _take_away(self) -> None:
        if (module := self._reference()) is not None:
            vars(module).pop(IMPLEMENTATION, None)


# --- Functions ---


class Place(NamedTuple):
    """Where a function is found by its callers: in the globals of a module, or as a method in a class."""

    owner: Union[dict, type]
    name: str

    def get(self) -> Any:
        return (self.owner if isinstance(self.owner, dict) else vars(self.owner)).get(self.name)

    def replace(self, before: Any, now: Any) -> None:
        if self.get() is not before:
            return
        if isinstance(self.owner, dict):
            self.owner[self.name] = now
        else:
            setattr(self.owner, self.name, now)


def _stand_in_for(part: "FoundFunction", function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not _C.islands_are_open():  # with what it is given, and no deeper on the stack than need be
            return part.function(*args, **kwargs)
        return part(*args, **kwargs)

    vars(call)[STANDS_IN_FOR] = function
    return call


STAND_IN: CodeType = next(one for one in _stand_in_for.__code__.co_consts if isinstance(one, CodeType))  # has a variable `part`


class FoundFunction(FoundPart):
    """Calls of a function that come by one of its places."""

    def __init__(self, function: types.FunctionType) -> None:
        super().__init__(function)
        self.function = function
        self._places: dict[tuple[int, str], Place] = {}
        self._stand_in = _stand_in_for(self, function)

    @staticmethod
    def _called(target: types.FunctionType) -> Callable[..., Any]:
        return target

    @staticmethod
    def _name_of(target: types.FunctionType) -> str:
        return target.__qualname__.rpartition("<locals>.")[2]

    def know(self, place: Place) -> None:
        """It is found there, too."""
        with self._lock:
            self._places.setdefault((id(place.owner), place.name), place)

    def holders(self) -> Iterator[Any]:
        """Of the function: its places, and what stands in for it."""
        yield from (self, vars(self), self._stand_in, vars(self._stand_in))
        yield from (gc.get_referents(vars(one.owner))[0] if isinstance(one.owner, type) else one.owner for one in self._places.values())

    def _put(self) -> None:
        for place in self._places.values():
            place.replace(self.function, self._stand_in)

    def _take_away(self) -> None:
        for place in self._places.values():
            place.replace(self._stand_in, self.function)

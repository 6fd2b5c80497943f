"""What a function reads besides its arguments: values of its closure and globals, and of the object it is bound to.

A graph freezes them. `@pianola.graphed` compares them at each call, so that a changed learning rate or flag captures anew
instead of being overlooked. Seen are: numbers, strings, None, tuples of them and enums; what an optimizer's groups say;
training flags, parameters and buffers of modules; fields of dataclasses and namespaces that are such values. What lies
deeper (attributes of attributes, entries of other containers) is not seen.
"""

import dataclasses
import enum
import types
from typing import Any, Callable, Iterator, Optional

import torch

from ._load import _C

_SIMPLE = (bool, int, float, complex, str, bytes, type(None), enum.Enum, torch.dtype, torch.device)


def _is_simple(value: Any) -> bool:
    return isinstance(value, _SIMPLE) or (isinstance(value, tuple) and all(map(_is_simple, value)))


class _Place:
    """Where a value is looked up anew at each call: an entry of a dictionary, a cell, or an attribute dictionary."""

    def __init__(self, look: Callable[[], Any]) -> None:
        self.look = look
        self._watched: Any = None
        self._watch: Optional[Callable[[], Any]] = None

    def value(self) -> Any:
        now = self.look()
        if isinstance(now, (float, int, str)) or now is None:
            return now
        if now is not self._watched:
            self._watched, self._watch = now, _watch_of(now)
        return None if self._watch is None else self._watch()


def _watch_of(value: Any) -> Optional[Callable[[], Any]]:
    if isinstance(value, torch.jit.ScriptModule):  # keeps its members elsewhere
        return lambda: tuple(module.training for module in value.modules())
    if isinstance(value, torch.nn.Module):
        return _C.ModuleWatch(value).state
    if isinstance(value, torch.optim.Optimizer):
        return lambda: _settings(value)
    if _is_simple(value):
        return lambda: value
    if isinstance(value, types.SimpleNamespace) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        return lambda: _simple_fields(value)
    if isinstance(value, torch.Tensor):
        return lambda: id(value)  # another tensor lies elsewhere
    return None


def _settings(optimizer: torch.optim.Optimizer) -> tuple:
    return tuple(
        (len(group["params"]), *(_setting(value) for name, value in group.items() if name != "params"))
        for group in optimizer.param_groups
    )


def _setting(value: Any) -> Any:
    return value if _is_simple(value) else id(value)


def _simple_fields(value: Any) -> tuple:
    return tuple((name, field) for name, field in vars(value).items() if _is_simple(field))


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _places(function: Any, owner: Any) -> Iterator[_Place]:
    function = getattr(function, "__func__", function)
    while hasattr(function, "__wrapped__"):  # a decorator's wrapper reads little itself
        yield from _own_places(function)
        function = function.__wrapped__
    yield from _own_places(function)
    if owner is not None and not isinstance(owner, torch.nn.Module) and hasattr(owner, "__dict__"):
        for name in vars(owner):
            yield _Place(lambda name=name: vars(owner).get(name))  # type: ignore[misc]


def _own_places(function: Any) -> Iterator[_Place]:
    code = getattr(function, "__code__", None)
    if code is None:
        return
    for cell in function.__closure__ or ():
        yield _Place(lambda cell=cell: _content(cell))  # type: ignore[misc]
    names = {name for one in _codes(code) for name in one.co_names}
    for name in sorted(names & function.__globals__.keys()):
        if not isinstance(function.__globals__[name], (types.ModuleType, types.FunctionType, type)):
            yield _Place(lambda name=name: function.__globals__.get(name))  # type: ignore[misc]


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


class Surroundings:
    """Looks at what a function reads besides its arguments.

    Args:
        function: a Python function, a bound method, or another callable, of which nothing is seen.
        owner: the object it is bound to; None for plain functions.
    """

    def __init__(self, function: Any, owner: Any = None) -> None:
        self._places = list(_places(function, owner))

    def values(self) -> tuple:
        """What they are now, for comparing with another time's."""
        return tuple([place.value() for place in self._places])

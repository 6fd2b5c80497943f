"""Functions that run around a read, and that something could stand in for: those that their callers find by a name, in the globals of a
module or in a class. What is nested in another function is none, nor a lambda, nor what torch, Python's library or Pianola has.
"""

import gc
import inspect
import sys
import types
from types import CodeType, FrameType
from typing import Any, Iterable, Optional

import torch

from ._audit.files import is_users
from ._found_calls import FoundFunction, Place
from ._host_places import dictionary_of
from ._replaced import original_of

_RETURNS_BEFORE_IT_RUNS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def _leads_to(function: Any, code: CodeType) -> bool:
    """Whether a call of it comes to this code: it may be a wrapper."""
    while isinstance(function, types.FunctionType):
        if function.__code__ is code:
            return True
        function = vars(function).get("__wrapped__")
    return False


def _place_of(frame: FrameType) -> Optional[Place]:
    """Where the caller of a frame has found its function, most likely."""
    code, name = frame.f_code, frame.f_code.co_name
    if name.startswith("<") or code.co_flags & _RETURNS_BEFORE_IT_RUNS:
        return None
    if _leads_to(frame.f_globals.get(name), code):
        return Place(frame.f_globals, name)
    if code.co_argcount == 0:
        return None
    owner = frame.f_locals.get(code.co_varnames[0])
    if isinstance(owner, torch.nn.Module) and name == "forward" and _leads_to(type(owner).forward, code):
        return None  # of the module itself
    open_to_all = (one for one in type(owner).__mro__ if type(one).__setattr__ is type.__setattr__)
    classes = (one for one in open_to_all if _leads_to(vars(one).get(name), code))
    return next((Place(one, name) for one in classes), None)


class FunctionsAround:
    """Those around the reads of a call. `outermost`: the frame that calls the step, which is none of them."""

    def __init__(self, outermost: FrameType) -> None:
        self._outermost: Optional[FrameType] = outermost
        self._places: dict[CodeType, Optional[Place]] = {}

    def note(self) -> None:
        """They run now."""
        frames: list[FrameType] = []
        frame: Optional[FrameType] = sys._getframe(1)
        while frame is not None and frame is not self._outermost:
            if is_users(frame.f_code):
                frames.append(frame)
            frame = frame.f_back
        for one in frames[:-1] if frame is not None else ():
            if one.f_code not in self._places:
                self._places[one.f_code] = _place_of(one)

    def finish(self) -> None:
        self._outermost = None

    def found(self) -> list[FoundFunction]:
        return parts_at([place for place in self._places.values() if place is not None])


def parts_at(places: Iterable[Place]) -> list[FoundFunction]:
    """Of the functions there that are found by a name alone: who holds one otherwise would see that something stands in for it."""
    parts: dict[int, FoundFunction] = {}
    for place in places:
        function = original_of(place.get())
        if type(function) is types.FunctionType:
            parts[id(function)] = FoundFunction.of(function)
            parts[id(function)].know(place)
    for module in list(sys.modules.values()) if parts else ():  # where they were imported by name, too
        variables = dictionary_of(module) or {}
        for name, part in [(name, parts.get(id(value))) for name, value in list(variables.items())]:
            if part is not None:
                part.know(Place(variables, name))
    held = _held_elsewhere(parts)
    return [part for number, part in parts.items() if number not in held]


def _held_elsewhere(parts: dict[int, FoundFunction]) -> set[int]:
    """Those of the functions."""
    known = {id(holder) for part in parts.values() for holder in part.holders()}
    strange = [one for one in gc.get_referrers(*(part.function for part in parts.values())) if id(one) not in known]
    held = {id(one) for holder in strange if not isinstance(holder, FrameType) for one in gc.get_referents(holder)}
    return held & parts.keys()

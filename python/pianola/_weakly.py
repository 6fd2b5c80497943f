"""What graphs may hold of Python's functions.

Python's collector of cycles does not see references that C++ holds: a graph that held its function, which holds the
module, which holds the graph as its forward, would never be freed. So C++ gets these. And what Python alone holds in a
circle waits for the collector, with all memory of its graphs: so a graphed forward does not hold its module.
"""

import functools
import inspect
import weakref
from typing import Any, Callable

from ._errors import refuse


class Weakly:
    """Calls a bound method without keeping its object alive."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = weakref.WeakMethod(method)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        method = self._method()
        assert method is not None, "whoever calls has the object"
        return method(*args, **kwargs)


def bound_weakly(function: Callable[..., Any], owner: Any) -> Callable[..., Any]:
    """A bound method that does not keep its object alive: the object holds the graphs, not they the object."""
    reference = weakref.ref(owner)

    @functools.wraps(function)
    def method(*args: Any, **kwargs: Any) -> Any:
        alive = reference()
        if alive is None:
            refuse(
                "the object that a graphed method belongs to is gone",
                "keep the object, or the graphed module, as long as its method is called",
                where=getattr(function, "__qualname__", ""),
            )
        return function(alive, *args, **kwargs)

    method.owner = reference  # type: ignore[attr-defined]
    return method


def owner_of(function: Any) -> Any:
    """The object that a function is a bound method of; None for none."""
    reference = getattr(function, "owner", None)
    return reference() if isinstance(reference, weakref.ref) else getattr(function, "__self__", None)


def forward_of(module: Any) -> Callable[..., Any]:
    """The forward of a module, for what the module will hold."""
    forward = module.forward
    if inspect.ismethod(forward) and forward.__self__ is module:
        return bound_weakly(forward.__func__, module)
    return forward


class WhileCapturing:
    """Keeps functions that are called while something is captured, and lets go of them afterwards."""

    def __init__(self) -> None:
        self._functions: list[Any] = []

    def hold(self, function: Any) -> Any:
        """A function that calls this one; None for None."""
        if function is None:
            return None
        place = len(self._functions)
        self._functions.append(function)
        return lambda *args: self._functions[place](*args)

    def release(self) -> None:
        self._functions.clear()

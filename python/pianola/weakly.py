"""What the C++ library may hold of Python's functions.

Python's collector of cycles does not see references that C++ holds: a graph that held its function, which holds the
module, which holds the graph as its forward, would never be freed. So C++ gets these.
"""

import weakref
from typing import Any, Callable


class Weakly:
    """Calls a bound method without keeping its object alive."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = weakref.WeakMethod(method)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        method = self._method()
        assert method is not None, "whoever calls has the object"
        return method(*args, **kwargs)


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

"""Remembers a function's results without keeping its arguments alive."""

import functools
import weakref
from typing import Any, Callable, TypeVar

Result = TypeVar("Result")


def once_per(function: Callable[[Any], Result]) -> Callable[[Any], Result]:
    """For functions of a class or a code object, asked often."""
    results: "weakref.WeakKeyDictionary[Any, Result]" = weakref.WeakKeyDictionary()

    @functools.wraps(function)
    def remembered(argument: Any) -> Result:
        found = results.get(argument)
        if found is None:
            found = results[argument] = function(argument)
        return found

    return remembered

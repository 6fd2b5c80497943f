"""Arguments that users give, checked before the library sees them, so that a wrong one is named."""

import numbers
from typing import Any

from ._errors import refuse


def as_numbers(values: Any, name: str, kind: type = float) -> list:
    """A list of numbers; `kind` is float or int.

    Raises:
        UsageError: it is none.
    """
    wanted = numbers.Integral if kind is int else numbers.Real
    if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
        refuse(f"{name} must be a list of numbers, got {values!r}")
    result = list(values)
    for value in result:
        if isinstance(value, bool) or not isinstance(value, wanted):
            refuse(f"{name} must hold {'whole ' if kind is int else ''}numbers, got {value!r}")
    return [kind(value) for value in result]

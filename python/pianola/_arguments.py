"""Arguments that users give, checked before the library sees them, so that a wrong one is named."""

import numbers
import operator
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


def as_bytes(value: Any, name: str) -> int:
    """A number of bytes, of whatever kind of whole number.

    Raises:
        UsageError: it is none, or below 0.
    """
    fix = f"pass bytes as an int, such as {name}=2 << 30 for 2 GiB"
    try:
        bytes_ = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        bytes_ = -1
    if bytes_ < 0:
        refuse(f"{name} must be a whole number of bytes, 0 or more, got {value!r}", fix)
    return bytes_

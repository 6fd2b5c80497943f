"""Which of the numbers that a captured run's operations were given follow from numbers among the call's arguments.

A torch function that is given a StandIn hands it, or what it makes of it, to its operations. Which one of an operation's numbers that is,
the values tell: in the capture and in each of the calls before it, that number is what the calculation gives for the arguments
of that call, and it was another one in three of them at least. Then a replay can give the operation the calculation's value. Of
what cannot be shown in this way, the value belongs to the signature.
"""

import struct
from typing import Any, NamedTuple, Sequence

from ._errors import refuse
from ._numbers import Trail, calculation_of, is_regular

_LEAST = 3  # different values that show it

# What torch's functions and derivatives make of a number that they are given.
_FORMS = ("(-{})", "(1 - {})", "(1 / {})", "({} - 1)", "(1 / (1 - {}))", "sqrt({})", "single({})")


class Given(NamedTuple):
    """A number of an operation. See NumberEvidence in C++."""

    operation: int
    argument: int
    can_be_set: bool
    is_collective: bool  # of torch.distributed
    is_place: bool  # of a view: which part of the memory it looks at
    sources: list[int]  # indexes of Trail.given
    numbers: list[Any]  # in the capture, and in the calls before


class _Calculations:
    """The values of calculations in the capture, and in the calls before; None where they raise."""

    def __init__(self, arguments: list[list[Any]]) -> None:
        self._arguments = arguments
        self._known: dict[str, list[Any]] = {}

    def __getitem__(self, text: str) -> list[Any]:
        values = self._known.get(text)
        if values is None:
            calculate = calculation_of(text, len(self._arguments[0]))
            values = self._known[text] = [_or_none(calculate, one) for one in self._arguments]
        return values


def bind(trail: Trail, table: list[str], arguments: list[list[Any]], given: Sequence[Given], change: str) -> list[tuple[int, int, int]]:
    """Where the graph has slots: (operation, argument, index of the table), whose calculations are added to it.

    Args:
        arguments: numbers of the capture, and of the calls before.
        change: in words, which number changes first.

    Raises:
        UsageError: an operation is given numbers that change, and that do not follow from the arguments.
    """
    values = _Calculations(arguments)
    slots = []
    bound: set[int] = set()  # sources
    pinned: set[int] = set()
    for one in given:
        if all(_is_same(number, one.numbers[0]) for number in one.numbers):
            continue
        texts = {trail.given[source][0] for source in one.sources}
        found = {text: text for text in texts if _gives(values[text], one.numbers)}
        found = found or {text: form for text in texts for form in _forms_of(text, values, one)}
        if not found and one.is_collective and any(_gives(values[text], one.numbers) for text in trail.values):
            continue  # collectives ask for plain values, which belong to the signature; other ranks are in this capture, too
        if not found:
            refuse(change or "an operation was given numbers that do not follow from the arguments", "keep it in a tensor")
        sources = {source for source in one.sources if trail.given[source][0] in found}
        text = next(iter(found.values()))
        is_shown = len(found) == 1 and len(set(map(repr, one.numbers))) >= _LEAST and one.can_be_set
        if not is_shown or "**" in text or not (one.is_place or is_regular(values[text][0])):
            pinned |= sources
            continue
        bound |= sources
        if text not in table:
            table.append(text)
        slots.append((one.operation, one.argument, table.index(text)))
        trail.regular[text] = trail.regular.get(text, False) or not one.is_place
    for source in range(len(trail.given)):
        if source in pinned or source not in bound:
            trail.pin(source)
    return slots


def _or_none(calculate: Any, arguments: list[Any]) -> Any:
    try:
        return calculate(*arguments)
    except (ArithmeticError, ValueError):
        return None


def _forms_of(text: str, values: _Calculations, one: Given) -> list[str]:
    """The first form that gives these numbers."""
    forms = [form.format(text) for form in _FORMS]
    if one.is_place and type(values[text][0]) is int:  # the end of a part that is as long in each call
        forms.append(f"({text} + {one.numbers[0] - values[text][0]})")
    return next(([form] for form in forms if _gives(values[form], one.numbers)), [])


def _gives(values: list[Any], numbers: list[Any]) -> bool:
    return all(map(_is_this, values, numbers))


def _is_this(value: Any, number: Any) -> bool:
    """Whether an operation that is given the value has the number."""
    if type(number) is float:
        return type(value) in (int, float) and _is_same(float(value), number)
    return type(value) is int and type(number) is int and value == number


def _is_same(one: Any, other: Any) -> bool:
    if type(one) is float and type(other) is float:
        return struct.pack("d", one) == struct.pack("d", other)
    return type(one) is type(other) and bool(one == other)

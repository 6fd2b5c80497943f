"""Which arguments of a function are numbers that change from call to call, so that they are followed: see _numbers."""

import sys
from types import CodeType
from typing import Any, Iterable, NamedTuple, Optional, Sequence, Union

from torch.utils import _pytree as pytree

from ._code_reads import reads_of
from ._structure import Structure, equal, names_of_arguments

_KINDS = (int, float)
_ADDS_DIGITS = {"sum"} if sys.version_info >= (3, 12) else set()


class NumberArguments(NamedTuple):
    """Arguments, not what is inside of them, which is the caller's."""

    leaves: tuple[int, ...]  # indexes of Structure.frozen
    places: tuple[Union[int, str], ...]  # among the positional arguments, or the keyword
    names: tuple[str, ...]  # "args[1]", "kwargs['temperature']"

    def values(self, structure: Structure) -> tuple:
        return tuple(structure.frozen[i][1] for i in self.leaves)

    def fit(self, one: Structure, other: Structure) -> bool:
        """Whether two structures differ in these numbers at most."""
        return one.same_but(other, self.leaves) and all(
            type(a) is type(b) and _is_usual(b) for a, b in zip(self.values(one), self.values(other))
        )

    def put(self, args: tuple, kwargs: dict[str, Any], numbers: Sequence[Any]) -> tuple[tuple, dict[str, Any]]:
        """The arguments, with these numbers."""
        positional, named = list(args), dict(kwargs)
        for place, number in zip(self.places, numbers):
            if isinstance(place, int):
                positional[place] = number
            else:
                named[place] = number
        return tuple(positional), named


def changing(before: Structure, now: Structure, args: tuple, kwargs: dict[str, Any], known: Iterable[int] = ()) -> Optional[NumberArguments]:
    """Where two calls differ in nothing but numbers: those, and those that are `known` to change, as indexes of Structure.frozen."""
    if len(before.frozen) != len(now.frozen):
        return None
    differing = [k for k, ((_, a), (_, b)) in enumerate(zip(before.frozen, now.frozen)) if k in known or not equal(a, b)]
    if not differing or any(type(one.frozen[k][1]) not in _KINDS for one in (before, now) for k in differing):
        return None
    if not before.same_but(now, differing):
        return None
    if not all(_is_usual(now.frozen[k][1]) for k in differing):
        return None
    if any(type(before.frozen[k][1]) is not type(now.frozen[k][1]) for k in differing):
        return None
    paths, _ = pytree.tree_flatten_with_path((args, dict(sorted(kwargs.items()))))
    names = names_of_arguments(args, kwargs)
    if len(names) != now.size or any(paths[now.frozen[k][0]][1] is not now.frozen[k][1] for k in differing):
        return None  # dataclasses were opened, whose fields are no arguments
    keys = [paths[now.frozen[k][0]][0] for k in differing]
    if any(len(key) != 2 for key in keys):
        return None
    places = tuple(key[1].idx if key[0].idx == 0 else key[1].key for key in keys)  # type: ignore[attr-defined]
    given = [args[place] if isinstance(place, int) else kwargs[place] for place in places]
    if any(one is not now.frozen[k][1] for one, k in zip(given, differing)):  # a dataclass was opened
        return None
    return NumberArguments(tuple(differing), places, tuple(names[now.frozen[k][0]] for k in differing))


def _is_usual(number: Any) -> bool:
    """Whether torch takes it."""
    return type(number) is float or abs(number) < 1 << 62


def tells_types(codes: Iterable[CodeType]) -> bool:
    """Whether one of them may tell a number that is followed from a plain one: it may compare types of numbers, or add up by sum(),
    which adds Python's own floats up with more digits."""
    return any(map(_tells_types, codes))


def _tells_types(code: CodeType) -> bool:
    if not _ADDS_DIGITS.intersection(code.co_names) and "type" not in code.co_names:
        return False
    names = {name for kind, name in reads_of(code).roots if kind == "global"}
    return not _ADDS_DIGITS.isdisjoint(names) or ("type" in names and not names.isdisjoint(("int", "float")))

"""Arguments that the caller makes anew for each call: `step(Batch(src, tgt))`.

An object is a constant of a graph: another one, another signature. So where each call is given another object of one class than
the call before, it is taken apart: its tensors are inputs, and the rest of it is compared. Not so one that the function writes, as
it does with a cache: a graph would write what it works on.
"""

from typing import Any, Optional

import torch

from ._structure import Structure, equal, opened, taken_apart
from ._weak_references import weakly

_CHANGES = 3  # in a row, until it is believed


def may_be_temporary(value: Any) -> bool:
    """Whether callers may make one like it for each call, or for some: a batch, a cache of keys and values."""
    return hasattr(value, "__dict__") and not isinstance(value, (type, torch.nn.Module)) and not callable(value)


class TakenApart:
    """Arguments of which some are taken apart."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], own: set[int]) -> None:
        self._given = args, kwargs
        self._own = own
        self.arguments = self._open()
        self._before: Optional[tuple[list[Any], Any]] = None

    def _open(self) -> Any:
        return opened(self._given, self._own, with_parts=True)

    def _outline(self) -> tuple[list[Any], Any]:
        leaves, nesting = taken_apart(self._open())
        return [(id(one), _version(one)) if isinstance(one, torch.Tensor) else one for one in leaves], nesting

    def look(self) -> None:
        self._before = self._outline()

    def were_written(self) -> bool:
        """Whether since look() an attribute became another one, or a tensor was written."""
        assert self._before is not None
        (before, nesting), (now, nesting_now) = self._before, self._outline()
        return nesting != nesting_now or not all(map(equal, before, now))


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


class TemporaryArguments:
    """Which arguments of one function are such objects.

    Threads: any. What two threads see at once counts as changes of one argument, which needs no more than that both be new.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[int, type], tuple[Any, int]] = {}
        self._opened: dict[tuple[int, type], bool] = {}  # False: never again

    def open(self, args: tuple[Any, ...], kwargs: dict[str, Any], structure: Structure) -> Optional[TakenApart]:
        """None where there are none."""
        own = {id(leaf) for i, leaf in structure.frozen if may_be_temporary(leaf) and self._is_temporary(i, leaf)}
        return TakenApart(args, kwargs, own) if own else None

    def _is_temporary(self, position: int, value: Any) -> bool:
        key = position, type(value)
        if key in self._opened:
            return self._opened[key]
        before, changes = self._seen.get(key, (None, 0))
        changes = 0 if before is not None and before() is value else changes + 1
        try:
            self._seen[key] = weakly(value), changes
        except TypeError:
            return False
        if changes > _CHANGES:
            self._opened[key] = True
        return changes > _CHANGES

    def close(self) -> None:
        """The function writes what it was given."""
        self._opened = dict.fromkeys(self._opened, False)

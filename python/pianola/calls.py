"""One call of a function that is graphed by its signature, as the C++ banks ask for it."""

from typing import Any, Callable

import torch

from .flat_function import FlatFunction
from .structure import Structure, equal, tensors_of
from .weakly import Weakly


class Keys:
    """Gives each combination of what is no tensor a number; the least recently used are forgotten."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._known: list[tuple[Structure, tuple, int]] = []  # most recently used first
        self._next = 0

    def number(self, structure: Structure, surroundings: tuple) -> int:
        for i, (known, values, number) in enumerate(self._known):
            if values == surroundings and known.same(structure) or _same(known, values, structure, surroundings):
                if i:
                    self._known.insert(0, self._known.pop(i))
                return number
        self._next += 1
        self._known.insert(0, (structure, surroundings, self._next))
        del self._known[self._capacity :]
        return self._next


def _same(known: Structure, values: tuple, structure: Structure, surroundings: tuple) -> bool:
    return len(values) == len(surroundings) and all(map(equal, values, surroundings)) and known.same(structure)


class Call:
    """One call, as the bank asks for it."""

    def __init__(self, graphed: Any, args: tuple[Any, ...], kwargs: dict[str, Any], structure: Structure) -> None:
        self.graphed = graphed
        self.args = args
        self.kwargs = kwargs
        self.structure = structure
        self.result: Any = None
        self.interrupts: list[BaseException] = []  # KeyboardInterrupt and the like: no reason to go on eagerly

    def run_eagerly(self) -> None:
        if self.interrupts:
            raise self.interrupts[0]
        self.result = self.graphed.original(*self.args, **self.kwargs)

    def eager_results(self) -> list[torch.Tensor]:
        return tensors_of(self.result)

    def to_capture(self) -> tuple[Any, FlatFunction]:
        flat = FlatFunction(self.while_capturing(), self.structure, name=name_of(self.graphed.original))
        return flat, flat

    def while_capturing(self) -> Callable[..., Any]:
        """The function, as a graph may hold it."""
        run, interrupts = Weakly(self.graphed.run_original), self.interrupts  # all that the graph may hold of this call

        def function(*args: Any, **kwargs: Any) -> Any:
            try:
                return run(*args, **kwargs)
            except Exception:
                raise
            except BaseException as interrupt:
                interrupts.append(interrupt)
                raise

        return function


def name_of(function: Any) -> str:
    return getattr(function, "__qualname__", None) or type(function).__qualname__

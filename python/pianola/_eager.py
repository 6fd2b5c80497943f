"""`pianola.eager`: a part of a graphed step that stays eager."""

import functools
from typing import Any, Callable, Generic, ParamSpec, TypeVar

import torch
from torch.utils import _pytree as pytree

from ._call import name_of
from ._errors import refuse
from ._load import _C
from ._numbers import StandIn, WatchedFloat, WatchedInt, call_given, plain

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


_LARGEST = 1 << 62  # numbers beyond are arguments like any other


class EagerPart(Generic[Arguments, Result]):
    """A function that a graphed step calls, and no graph holds. Made by `pianola.eager`."""

    def __init__(self, function: Callable[Arguments, Result]) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._number = _C.next_island_number()

    def __call__(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if not _C.islands_are_open():
            return self._function(*args, **kwargs)
        return _as_island(self._function, self._number, args, kwargs)

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return self if owner is None else functools.partial(self, owner)


def eager(function: Callable[Arguments, Result]) -> EagerPart[Arguments, Result]:
    """Keeps a part of a graphed step eager: what reads values on the host, logs, or calls what no graph can hold.

        @pianola.eager
        def route(scores):
            return torch.tensor(scores.argmax().item())

        @pianola.graphed
        def step(x):
            return experts(x, route(gate(x)))

    A replay runs the graph up to the call, the function, and the graph behind it. Gradients go through it. Outside of a graphed step
    it is the function itself.

    It is given tensors, numbers and anything else, also in lists, tuples and dicts; numbers are those of each call, and anything
    else is what it was when the step was captured. It returns tensors or None, of the same shapes and types in each call.

    Raises:
        pianola.UsageError: It does what no replay could do: see the guide. Where a replay finds that it returns other tensors or gives
            other gradients than when the step was captured, what the step does before it has run.
    """
    if not callable(function):
        refuse(f"pianola.eager() was given {type(function).__name__}, which cannot be called", "give it a function or a module")
    return EagerPart(function)


def _as_island(function: Callable[..., Any], number: int, args: tuple, kwargs: dict) -> Any:
    leaves, structure = pytree.tree_flatten((args, kwargs))
    kinds = [_kind_of(leaf) for leaf in leaves]
    known: list[Any] = []  # what becomes of the results
    others = [leaf for leaf, kind in zip(leaves, kinds) if kind == "other"]

    def run(tensors: list[torch.Tensor], numbers: list[Any]) -> tuple[list[torch.Tensor], Any]:
        given = {"tensor": iter(tensors), "number": iter(numbers), "other": iter(others)}
        its_args, its_kwargs = pytree.tree_unflatten([next(given[kind]) for kind in kinds], structure)
        results, made = pytree.tree_flatten(function(*its_args, **its_kwargs))
        _check(results, name_of(function))
        shape = (made, [one is not None for one in results])
        if known and known[0] != shape:
            refuse(f"{name_of(function)}, which stays eager, returns another structure in a replay", "let each call return the same one")
        return [one for one in results if one is not None], shape

    tensors = [leaf for leaf, kind in zip(leaves, kinds) if kind == "tensor"]
    numbers = [leaf for leaf, kind in zip(leaves, kinds) if kind == "number"]
    followed = [one for one in numbers if type(one) is StandIn]
    call = (run, name_of(function), number, tensors, numbers)
    results, (made, is_tensor) = call_given(_C.call_island, call, {}, followed)
    known.append((made, is_tensor))
    rest = iter(results)
    return pytree.tree_unflatten([next(rest) if is_one else None for is_one in is_tensor], made)


def _kind_of(leaf: Any) -> str:
    if type(leaf) is StandIn:
        leaf = plain(leaf)
    if type(leaf) in (int, float, WatchedInt, WatchedFloat) and not abs(leaf) >= _LARGEST:
        return "number"
    return "tensor" if isinstance(leaf, torch.Tensor) else "other"


def _check(results: list[Any], name: str) -> None:
    for one in results:
        if one is not None and not isinstance(one, torch.Tensor):
            refuse(
                f"{name}, which stays eager, returns {type(one).__name__}, which a graph cannot be given",
                "let it return tensors: torch.tensor(value, device=...)",
            )

"""`pianola.eager`: a part of a graphed step that stays eager."""

import functools
import operator
from typing import Any, Callable, Generic, ParamSpec, TypeVar

import torch
from torch.utils import _pytree as pytree

from ._call import name_of
from ._errors import refuse
from ._load import _C
from ._numbers import StandIn, WatchedFloat, WatchedInt, call_given, plain
from ._settings_here import settings_here

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


_LARGEST = 1 << 62  # numbers beyond are arguments like any other
_COMPARED = 3  # calls, the first of which may be in the capture


class EagerPart(Generic[Arguments, Result]):
    """A function that a graphed step calls, and no graph holds. Made by `pianola.eager`."""

    is_found = False  # by the library, not marked by the user

    def __init__(self, function: Callable[Arguments, Result]) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._number = _C.next_island_number()

    def __call__(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if not _C.islands_are_open():
            return self._function(*args, **kwargs)
        return _as_island(self._function, self._number, args, kwargs, self.is_found)

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


class _Call:
    """One call of a part: what a replay puts in the places of its tensors and numbers."""

    def __init__(self, function: Callable[..., Any], args: tuple, kwargs: dict, is_found: bool) -> None:
        self.function = function
        self.is_found = is_found
        self.leaves, self.structure = pytree.tree_flatten((args, kwargs))
        kinds = [_kind_of(leaf) for leaf in self.leaves]
        self.tensors = [leaf for leaf, kind in zip(self.leaves, kinds) if kind == "tensor"]
        self.numbers = [leaf for leaf, kind in zip(self.leaves, kinds) if kind == "number"]
        self.places = [i for kind in ("tensor", "number") for i, its_kind in enumerate(kinds) if its_kind == kind]
        self.is_flat = not kwargs and len(args) == len(self.leaves) and all(map(operator.is_, args, self.leaves))
        for i in self.places:
            self.leaves[i] = None  # kept alive by whoever needs it
        self.shape: Any = None  # of the results, of the first call on
        self.settings = settings_here()
        self.to_be_compared = 0 if is_found else _COMPARED  # in so many calls; parts that were found have been looked at

    # Behind the function the device waits: the usual results come first, and as they are.
    def __call__(self, tensors: list[torch.Tensor], numbers: list[Any]) -> Any:
        if self.to_be_compared:
            self.to_be_compared -= 1
            self._compare_settings()
        given = self.leaves.copy()
        for place, value in zip(self.places, [*tensors, *numbers]):
            given[place] = value
        if self.is_flat:
            result = self.function(*given)
        else:
            args, kwargs = pytree.tree_unflatten(given, self.structure)
            result = self.function(*args, **kwargs)
        if self.is_found and _shares_memory(result, tensors):  # what is written there behind the call, a graph would write elsewhere
            raise RuntimeError("it returns what it is given")  # so that the call is made eagerly
        if (result is None and self.shape is _NOTHING) or (isinstance(result, torch.Tensor) and self.shape is _ONE_TENSOR):
            return result
        if self.is_found and self.shape is not None and not self._is_as_before(result):
            return [], _NOTHING  # which is taken for other tensors
        results, shape = self._taken_apart(result)
        if self.shape is not None and self.shape != shape:
            refuse(
                f"{name_of(self.function)}, which stays eager, returns another structure in a replay",
                "let each call return the same one",
            )
        return results, shape

    def _compare_settings(self) -> None:
        if self.settings != settings_here():
            refuse(
                f"{name_of(self.function)}, which stays eager, is called where the step has entered other settings of torch (the kernels "
                "of attention, a precision, a mode), and a replay is not in them",
                "enter them inside of it",
            )

    def _is_as_before(self, result: Any) -> bool:
        leaves = pytree.tree_leaves(result)
        return all(one is None or isinstance(one, torch.Tensor) for one in leaves) and self._taken_apart(result)[1] == self.shape

    def _taken_apart(self, result: Any) -> tuple[list[torch.Tensor], Any]:
        if result is None:
            return [], _NOTHING
        if isinstance(result, torch.Tensor):
            return [result], _ONE_TENSOR
        results, structure = pytree.tree_flatten(result)
        _check(results, name_of(self.function))
        return [one for one in results if one is not None], (structure, [one is not None for one in results])


def _shares_memory(result: Any, given: list[torch.Tensor]) -> bool:
    results = [result] if isinstance(result, torch.Tensor) else pytree.tree_leaves(result)
    tensors = [one for one in results if isinstance(one, torch.Tensor)]
    return any(torch._C._is_alias_of(one, other) for one in tensors for other in given)  # type: ignore[attr-defined]


_NOTHING, _ONE_TENSOR = "nothing", "one tensor"  # shapes of results


def _as_island(function: Callable[..., Any], number: int, args: tuple, kwargs: dict, is_found: bool) -> Any:
    run = _Call(function, args, kwargs, is_found)
    followed = [one for one in run.numbers if type(one) is StandIn]
    call = (run, name_of(function), number, run.tensors, run.numbers)
    run.tensors, run.numbers = [], []
    called = call_given(_C.call_island, call, {"is_found": is_found}, followed)
    if called is None:
        return function(*args, **kwargs)
    results, run.shape = called
    if run.shape is _NOTHING:
        return None
    if run.shape is _ONE_TENSOR:
        return results[0]
    structure, is_tensor = run.shape
    rest = iter(results)
    return pytree.tree_unflatten([next(rest) if is_one else None for is_one in is_tensor], structure)


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

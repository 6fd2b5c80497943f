"""The step under audit, as something that is called with arguments, and those."""

import functools
import inspect
import itertools
from typing import Any, Callable, Iterable, Iterator, Optional

import torch

from .._errors import refuse
from .._graphed import function_of
from .._structure import names_of_arguments, tensors_of
from . import files

Arguments = tuple[tuple, dict[str, Any]]


class Target:
    """A step; of a graphed function the function. A module's is its forward pass, and its backward pass where it trains."""

    def __init__(self, step: Any) -> None:
        if not callable(step):
            refuse(f"a {type(step).__qualname__} cannot be audited", "pass a function or a module")
        step = function_of(step)
        files.adopt(inspect.unwrap(step))
        self.step = step
        self.module: Optional[torch.nn.Module] = step if isinstance(step, torch.nn.Module) else None
        self.name = _name_of(step)
        function = step.forward if self.module is not None else step
        try:
            self._signature: Optional[inspect.Signature] = inspect.signature(function)
        except (TypeError, ValueError):  # a builtin that does not tell
            self._signature = None

    def names_of(self, args: tuple, kwargs: dict[str, Any]) -> list[str]:
        """What people call the leaves of the arguments: "x", "batch['mask']"."""
        names = names_of_arguments(args, kwargs)
        try:
            parameters = list(self._signature.parameters.values()) if self._signature is not None else []
        except AttributeError:
            parameters = []
        positional = [one.name for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
        return [_readable(name, positional) for name in names]


def _readable(name: str, positional: list[str]) -> str:
    kind, _, rest = name.partition("[")
    key, _, deeper = rest.partition("]")
    if kind == "kwargs":
        return key.strip("'\"") + deeper
    index = int(key) if key.isdigit() else len(positional)
    return positional[index] + deeper if index < len(positional) else name


def _name_of(step: Any) -> str:
    if isinstance(step, functools.partial):
        return _name_of(step.func)
    return str(getattr(step, "__qualname__", type(step).__qualname__)).rpartition("<locals>.")[2]


def gradients_wanted(module: torch.nn.Module, result: Any) -> list[torch.Tensor]:
    """The results that a graphed callable would be given gradients of."""
    if not module.training or not torch.is_grad_enabled():
        return []
    return [tensor for tensor in tensors_of(result) if tensor.requires_grad]


class Batches:
    """Arguments, call by call, in turn. Entries are tuples of arguments, dicts of keyword arguments, or one argument."""

    def __init__(self, batches: Optional[Iterable[Any]]) -> None:
        if batches is not None and (isinstance(batches, (torch.Tensor, dict, str)) or not isinstance(batches, Iterable)):
            refuse(
                f"batches must be a list of the arguments of each call, got a {type(batches).__qualname__}",
                "write batches=[(x, y), ...]: each entry a tuple of arguments, one tensor, or a dict of keyword arguments",
            )
        self.are_listed = batches is None or isinstance(batches, (list, tuple))  # else code runs to make them
        self._entries = self._repeated(batches) if batches is not None else itertools.repeat(())

    @staticmethod
    def _repeated(batches: Iterable[Any]) -> Iterator[Any]:
        """As itertools.cycle, but a list is not copied, so that entries which the training loop replaces count."""
        if not isinstance(batches, (list, tuple)):
            yield from itertools.cycle(batches)
        while batches:
            yield from batches
        refuse("batches is empty", "give at least one entry, or leave it out for a step without arguments")

    def next(self) -> Arguments:
        entry = next(self._entries, None)
        if entry is None:
            refuse("batches is empty", "give at least one entry, or leave it out for a step without arguments")
        if isinstance(entry, tuple) and not hasattr(entry, "_fields"):
            return entry, {}
        return ((), dict(entry)) if isinstance(entry, dict) and all(isinstance(key, str) for key in entry) else ((entry,), {})


def taking_a_number(between: Optional[Callable[..., Any]]) -> Callable[[int], Any]:
    """`between`, called with how many runs are over where it cannot be called without an argument."""
    if between is None:
        return lambda runs: None
    try:
        inspect.signature(between).bind()
    except TypeError:
        return between
    except ValueError:  # a builtin that does not tell
        pass
    return lambda runs: between()

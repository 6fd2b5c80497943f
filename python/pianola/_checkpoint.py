"""`pianola.Checkpoint`: the parts of a training run in one file."""

import os
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, Optional, Protocol, Union

import torch

from ._errors import Error, UsageError, refuse
from ._load import _C
from ._weakly import Weakly


class HasStateDict(Protocol):
    """Modules, optimizers, schedules, GradScaler, RngTracker, ExponentialMovingAverage."""

    def state_dict(self) -> Any: ...
    def load_state_dict(self, state_dict: Any, /) -> Any: ...


NamedTensors = Union[Mapping[str, torch.Tensor], Iterable[tuple[str, torch.Tensor]]]

_ANOTHER = "load the checkpoint of the same model, or make the parts as they were when it was saved"


class Checkpoint(_C.Checkpoint):
    """The parts of a training run in one file. Loading fills the existing tensors, so graphs that were captured before
    continue with what was loaded.

        checkpoint = pianola.Checkpoint()
        checkpoint.add("model", model).add("optimizer", optimizer).add("scaler", scaler).add("random", tracker)
        checkpoint.add_generator("generator", torch.cuda.default_generators[0])
        checkpoint.save("step-1000.pt")   # between two iterations
        checkpoint.load("step-1000.pt")

    The file is that of C++'s pianola::Checkpoint, a dict from the names of the parts to their states, and
    torch.load(weights_only=True) reads it as well.
    """

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[_Part] = []  # the library holds their methods, weakly

    def add(self, name: str, part: Union[HasStateDict, NamedTensors]) -> "Checkpoint":
        """Adds a part, which the checkpoint keeps alive.

        Args:
            name: unique in this checkpoint.
            part: an object with state_dict() and load_state_dict(), of pianola, of torch or your own; yours must raise, and
                change nothing, if it cannot take a state. Or tensors by name: a dict, or pairs as named_parameters() gives.

        Returns:
            The checkpoint, for the next add().

        Raises:
            UsageError: there is a part of this name, or `part` is nothing of that kind.
        """
        if isinstance(part, (torch.Tensor, torch.Generator)):
            fix = "add_generator() takes it" if isinstance(part, torch.Generator) else f"give it a name: {{{name!r}: tensor}}"
            refuse(f"part {name!r} is a {type(part).__name__}, which has no state_dict()", fix)
        if hasattr(part, "state_dict") and hasattr(part, "load_state_dict"):
            adapter = _adapter_of(part)
            super().add_part(name, Weakly(adapter.save), Weakly(adapter.load))
            self._parts.append(adapter)
        else:
            super().add_tensors(name, _pairs(name, part))
        return self

    def save(self, file: "Union[str, os.PathLike[str]]") -> None:
        """Writes the file, or replaces it in one move, so that a crash leaves the old one or the new one.

        Raises:
            UsageError: the file cannot be written, or a state_dict() holds something else than None, numbers, strings,
                tensors, and dicts, lists and tuples of these. An earlier file is as it was.
        """
        super().save(os.fspath(file))

    def load(self, file: "Union[str, os.PathLike[str]]") -> None:
        """Loads all parts, or none. Needs room for a copy of all parts, where their tensors are, and for one on the host.

        Raises:
            UsageError: the file cannot be read, is no checkpoint, lacks a part or has an unknown one, or a part does not
                fit (another model, another optimizer). All parts are then as before.
        """
        for part in self._parts:
            part.error = None
        try:
            super().load(os.fspath(file))
        except UsageError as refusal:
            raise refusal from next((part.error for part in self._parts if part.error is not None), None)


def _pairs(name: str, part: Any) -> list[tuple[str, torch.Tensor]]:
    pairs = list(part.items() if isinstance(part, Mapping) else part) if isinstance(part, Iterable) else None
    if pairs is None or not all(map(_is_pair, pairs)):
        refuse(
            f"part {name!r} is a {type(part).__name__}, without state_dict() and load_state_dict(), and no tensors by name",
            "give a module, an optimizer or the like, a dict of tensors, or (name, tensor) pairs",
        )
    seen: set[str] = set()
    for one, _ in pairs:
        if one in seen:
            refuse(f"part {name!r} has two tensors of the name {one!r}", "give each tensor a name of its own")
        seen.add(one)
    return pairs


def _is_pair(pair: Any) -> bool:
    return isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) and isinstance(pair[1], torch.Tensor)


class _Part:
    """What the library asks for a part's state, and gives one to."""

    def __init__(self, part: Any) -> None:
        self.part = part
        self.error: Optional[Exception] = None  # what it raised in answer to the last state

    def save(self) -> Any:
        return self.part.state_dict()

    def load(self, state: Any) -> None:
        try:
            self.take(state)
        except Error:
            raise
        except Exception as error:
            self.error = error
            refuse(f"{type(error).__name__}: {error}", _ANOTHER)

    def take(self, state: Any) -> None:
        self.part.load_state_dict(state)


class _Module(_Part):
    """load_state_dict() copies as it goes, and tells only at the end what did not fit: so look first."""

    def take(self, state: Any) -> None:
        own = self.part.state_dict()
        _check_tensors(own, state)
        saved = OrderedDict(state)
        if hasattr(own, "_metadata"):
            setattr(saved, "_metadata", own._metadata)  # versions of the layout, which the file does not tell
        self.part.load_state_dict(saved)


class _TorchOptimizer(_Part):
    """torch's optimizers put loaded tensors in the place of theirs, which graphs know: put theirs back, filled."""

    stepped: set[int] = set()  # parameters that had made a step when save() was called

    def save(self) -> Any:
        state = self.part.state_dict()
        self.stepped = set(state["state"])
        return state

    def take(self, state: Any) -> None:
        self.check(state)
        tensors = {parameter: dict(values) for parameter, values in self.part.state.items()}
        groups = list(self.part.param_groups)
        self.part.load_state_dict(state)
        for parameter, values in tensors.items():
            _fill(values, self.part.state.get(parameter, {}))
        for own, loaded in zip(groups, self.part.param_groups):
            _fill(own, loaded)

    def check(self, state: Any) -> None:
        own = self.part.state_dict()
        for i, (group, saved) in enumerate(zip(own["param_groups"], state["param_groups"])):
            unknown = sorted(saved.keys() - group.keys())
            if unknown:
                refuse(f"param_groups[{i}] holds {unknown[0]!r}, which has no meaning for this optimizer", _ANOTHER)
        # What was empty when save() was called is so again where a later part refuses.
        fresh = sorted(self.stepped - state["state"].keys())
        if fresh:
            refuse(
                f"state[{fresh[0]}] is not in the checkpoint, which was saved ahead of the first step: a graph would go on "
                "with what the optimizer has",
                "load it into an optimizer that has made no step, or use one of pianola.optim",
            )
        for i in own["state"].keys() & state["state"].keys():
            _check_tensors(own["state"][i], state["state"][i], f"state[{i}]")


def _adapter_of(part: Any) -> _Part:
    if isinstance(part, torch.nn.Module):
        return _Module(part)
    return _TorchOptimizer(part) if isinstance(part, torch.optim.Optimizer) else _Part(part)


def _fill(own: dict, loaded: dict) -> None:
    """Moves what was loaded into the tensors that were there."""
    with torch.no_grad():
        for name, tensor in own.items():
            if not isinstance(tensor, torch.Tensor) or name not in loaded:
                continue
            value = loaded[name]
            loaded[name] = tensor.copy_(value) if isinstance(value, torch.Tensor) else tensor.fill_(value)


def _check_tensors(own: Mapping, saved: Any, path: str = "") -> None:
    if not isinstance(saved, Mapping):
        refuse(f"{path or 'its state'} must be a map from names to tensors, got {type(saved).__name__}", _ANOTHER)

    def called(name: Any) -> str:
        return f"{path}[{name!r}]" if path else repr(name)

    for name, value in own.items():
        if name not in saved:
            refuse(f"{called(name)} is not in the checkpoint", _ANOTHER)
        one, other = _in_words(value), _in_words(saved[name])
        if one != other:
            refuse(f"{called(name)} is {one}, and {other} in the checkpoint", _ANOTHER)
    for name in saved:
        if name not in own:
            refuse(f"{called(name)} is in the checkpoint, and not here", _ANOTHER)


def _in_words(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return "no tensor"

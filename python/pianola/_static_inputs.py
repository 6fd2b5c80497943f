"""`pianola.StaticInputs`: the batch that a captured step reads, filled asynchronously; `pianola.Buckets`: padding."""

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any, Callable, Iterable, Iterator, Optional, Sequence, Union

import torch
from torch.utils import _pytree as pytree

from ._device import Device, as_device
from ._errors import refuse
from ._load import _C
from ._structure import Structure, of_arguments

Number = Union[bool, int, float, complex]
Along = tuple[int, Number]

_SAME_STRUCTURE = "give every batch the structure of the first one, or StaticInputs of its own"
_FREEZABLE = (type(None), bool, int, float, complex, str, bytes, enum.Enum, torch.dtype, torch.device)


class Buckets(_C.Buckets):
    """Lengths to which batches of variable length are padded, so that one graph per length serves them all.

        Buckets([128, 256, 512], pad={"tokens": 0, "targets": -100})
        Buckets([64], pad={"mask": [(-1, False), (-2, False)]})   # along two dimensions

    The length of a microbatch is the size of its padded tensors along their dimensions, the same for all of them. A batch
    goes into the smallest bucket that holds its longest microbatch.

    Args:
        sizes: lengths, ascending.
        dim: where lengths vary, for tensors that name no dimension; negative: from the last one.
        pad: which tensors are padded, and with what. A key is the last part of a tensor's path ("tokens"), or its whole path in
            the microbatch as messages write it ("['text']['tokens']", "[0]"). Its value fills the tail; or it is (dimension,
            value), or a list of such pairs. None: all tensors whose size along `dim` equals that of the microbatch's first
            tensor with such a dimension; the first batch decides.
        value: fills the tails if `pad` is None.
    """

    def __init__(
        self,
        sizes: Iterable[int],
        *,
        dim: int = 1,
        pad: Optional[Mapping[str, Union[Number, Along, Sequence[Along]]]] = None,
        value: Number = 0,
    ) -> None:
        padding = [(name, *along) for name, given in (pad or {}).items() for along in _alongs(given)]
        super().__init__(list(sizes), dim, padding, value)


def _alongs(given: Any) -> list[tuple[Optional[int], Number]]:
    if isinstance(given, list):
        return [tuple(along) for along in given]
    return [given] if isinstance(given, tuple) else [(None, given)]


class StaticInputs(_C.StaticInputs):
    """The batch that a captured step reads: tensors at fixed addresses, one set per microbatch, filled asynchronously.

        inputs = pianola.StaticInputs("cuda")
        inputs.load(next(batches))
        graph.capture(lambda: step(inputs.microbatches()))
        graph.replay()
        for batch in batches:
            inputs.load(batch)   # travels while the replay before it still runs
            graph.replay()       # reads it

    A batch is a list with one value per microbatch: tensors, None, numbers and strings, nested in dicts, lists, tuples and
    dataclasses. The first batch fixes everything but the tensors' values. A batch that differs is refused, and changes
    nothing.

    When are the tensors of a batch read? In host memory that is not pinned: during prefetch(), or, on a GPU with neither
    `pin` nor `double_buffer`, during advance(). Pinned or on a GPU: until the work that advance() has put on the current
    stream is done; do not write to them before. A tensor that is the static one itself is not copied.

    Args:
        device: where the step runs; None: the current CUDA device where there is one, else the CPU.
        pin: copy tensors of ordinary host memory into pinned buffers first, from where the device fetches them.
        double_buffer: send a batch into separate device memory while the step still reads the one before.
        buckets: lengths to which tensors of variable length are padded. There is one set of static tensors per bucket, in
            the same memory.
    """

    def __init__(
        self,
        device: Device = None,
        *,
        pin: bool = True,
        double_buffer: bool = True,
        buckets: Optional[Buckets] = None,
    ) -> None:
        self._paths: list[list[str]] = []
        self._structures: list[Structure] = []
        self._statics: dict[int, list[Any]] = {}
        self._taken_apart: dict[int, Structure] = {}
        super().__init__(as_device(device), pin, double_buffer, buckets, _PathOf(self._paths))

    def prefetch(self, batch: Sequence[Any]) -> None:
        """Starts the next batch on its way; the current one stays until advance().

        Raises:
            UsageError: the batch differs from the first one (number of microbatches, keys, lengths of lists, tensor or
                None, numbers, strings, shapes, dtypes), is longer than the largest bucket, a prefetched batch waits for
                advance() already, or a capture is open on this thread. Nothing has changed.
        """
        if not isinstance(batch, (list, tuple)):
            refuse(f"a batch is a list with one value per microbatch, got a {type(batch).__qualname__}", "give [batch]")
        if self._structures:
            super().prefetch([self._tensors_like_first(i, microbatch) for i, microbatch in enumerate(batch)])
            return
        self._paths[:] = [_tensor_paths(microbatch, f"microbatch {i}") for i, microbatch in enumerate(batch)]
        taken_apart = [of_arguments((microbatch,), {}) for microbatch in batch]
        super().prefetch([tensors for tensors, _ in taken_apart])
        self._structures = [structure for _, structure in taken_apart]

    def load(self, batch: Sequence[Any]) -> None:
        """prefetch() and advance(): the batch travels while the device still works on what is on the current stream."""
        self.prefetch(batch)
        self.advance()

    def microbatches(self) -> list[Any]:
        """The current batch, around the static tensors: the same ones each time, per bucket.

        Raises:
            UsageError: nothing was loaded yet.
        """
        tensors = iter(self.tensors())
        if self.bucket not in self._statics:
            self._statics[self.bucket] = [
                structure.rebuild([next(tensors) for _ in range(structure.tensors)])[0][0] for structure in self._structures
            ]
        return self._statics[self.bucket]

    def _structure(self) -> Structure:
        """Of microbatches(), as the only argument of a call: taken apart once per bucket, since each step asks for it."""
        if self.bucket not in self._taken_apart:
            _, self._taken_apart[self.bucket] = of_arguments((self.microbatches(),), {})
        return self._taken_apart[self.bucket]

    def _tensors_like_first(self, index: int, microbatch: Any) -> list[torch.Tensor]:
        if index >= len(self._structures):
            return []  # one too many: the library says so
        first = self._structures[index]
        tensors, now = of_arguments((microbatch,), {})
        if first.same(now):
            return tensors
        like = first.rebuild([torch.empty(0)] * first.tensors)[0][0]  # any tensors do
        tensors, now = of_arguments((_ordered(like, microbatch),), {})
        if not first.same(now):
            refuse(*_difference(like, microbatch, f"microbatch {index}"))
        return tensors


class _PathOf:
    """Names of tensors for the library, which holds it: without a way back to StaticInputs, which would never go."""

    def __init__(self, paths: list[list[str]]) -> None:
        self._paths = paths

    def __call__(self, microbatch: int, tensor: int) -> str:
        return self._paths[microbatch][tensor]


def _children(value: Any) -> Optional[list[tuple[str, Any]]]:
    """The parts of a container with their step of the path, in the order of pytree; None for what is none."""
    node = pytree.SUPPORTED_NODES.get(pytree._get_node_type(value))
    if node is None:
        if not dataclasses.is_dataclass(value) or isinstance(value, type):
            return None
        names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
        return [(f".{name}", getattr(value, name)) for name in names]
    children = node.flatten_fn(value)[0]
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", child) for key, child in zip(value, children)]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(f".{name}", child) for name, child in zip(value._fields, children)]
    return [(f"[{i}]", child) for i, child in enumerate(children)]


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    children = _children(value)
    if children is None:
        yield path, value
        return
    for step, child in children:
        yield from _leaves(child, path + step)


def _tensor_paths(microbatch: Any, name: str) -> list[str]:
    """Within the microbatch. Refuses what is neither a tensor nor a value that a capture may freeze."""
    paths = []
    for path, leaf in _leaves(microbatch, ""):
        if isinstance(leaf, torch.Tensor):
            paths.append(path)
        elif not isinstance(leaf, _FREEZABLE):
            refuse(
                f"{name}{path} is of type {type(leaf).__qualname__}, which cannot be copied into a static tensor",
                "give tensors (torch.as_tensor), numbers, strings and None, nested in dicts, lists, tuples and dataclasses",
            )
    return paths


def _ordered(like: Any, value: Any) -> Any:
    """`value` with the keys of its dicts in the order of `like`, where they are the same."""
    if type(like) is not type(value):
        return value
    if isinstance(value, dict) and like.keys() == value.keys():
        ordered = value.copy()
        ordered.clear()
        ordered.update((key, _ordered(like[key], value[key])) for key in like)
        return ordered
    if type(value) in (list, tuple) and len(like) == len(value):
        return type(value)(_ordered(one, other) for one, other in zip(like, value))
    return value


def _same(first: Any, now: Any) -> bool:
    return of_arguments((first,), {})[1].same(of_arguments((_ordered(first, now),), {})[1])


def _difference(first: Any, now: Any, path: str) -> tuple[str, str]:
    """What differs first, and what to do: names the key that is missing or new, or what was expected and what came."""
    one, other = _children(first), _children(now)
    if one is not None and other is not None and type(first) is type(now):
        parts, others = dict(one), dict(other)
        if isinstance(first, Mapping):
            for key in first:
                if key not in now:
                    return f"{path} lacks the key {key!r}", _SAME_STRUCTURE
            for key in now:
                if key not in first:
                    return f"{path} has the key {key!r}, which the first batch did not have", _SAME_STRUCTURE
        if parts.keys() == others.keys():
            for step, part in one:
                if not _same(part, others[step]):
                    return _difference(part, others[step], path + step)
    what = f"{path}: expected {_in_words(first)}, got {_in_words(now)}"
    kinds = {type(first), type(now)}
    if type(None) in kinds and any(issubclass(kind, torch.Tensor) for kind in kinds):
        return what, "give a tensor in every batch (a neutral one where there is nothing), or None in every batch"
    if one is None and first is not None and not isinstance(first, torch.Tensor):
        return what, "pass what changes as a tensor: a captured step freezes numbers and strings"
    return what, _SAME_STRUCTURE


def _in_words(value: Any) -> str:
    children = _children(value)
    if isinstance(value, torch.Tensor):
        return "a tensor"
    return repr(value) if children is None else f"a {type(value).__name__} of {len(children)}"

"""Inputs on the CPU that a step brings to the GPU itself: `x, y = x.to(device), y.to(device)`.

Each call has other values there, and a graph reads from memory that stays. So such a tensor is brought to the device before the call,
through pinned memory, and the graph has it for an input; where the function asks for it on the device, it is given that. Whether a
function does nothing else with a tensor is seen in one eager call.

One that the function uses on the host alone (the lengths of packed sequences) decides shapes and numbers: its values belong to the
signature.
"""

import collections
import threading
from typing import Any, Callable, NamedTuple, Optional, Sequence

import torch

from ._errors import refuse
from ._handed_on import is_dense
from ._load import _C
from ._structure import of_arguments, with_leaves

_Tensor = torch.Tensor

# What may be asked of a tensor without looking at its values.
_METADATA = {
    *(getattr(_Tensor, name).__get__ for name in ("shape", "dtype", "device", "layout", "ndim", "is_cuda", "requires_grad", "grad_fn")),
    *(_Tensor.size, _Tensor.dim, _Tensor.numel, _Tensor.nelement, _Tensor.__len__, _Tensor.is_floating_point, _Tensor.element_size),
    *(_Tensor.is_pinned, torch.is_floating_point, torch.numel, torch.is_tensor),
}
_LAYOUT = {_Tensor.stride, _Tensor.is_contiguous}  # which arrives as it was where a tensor is dense
_COPIES = (_Tensor.to, _Tensor.cuda)
# What gives the same values before the way as behind it: other shapes, and types whose conversion rounds alike everywhere.
_EXACT = {
    *(_Tensor.float, _Tensor.long, _Tensor.int, _Tensor.double, _Tensor.half, _Tensor.bfloat16, _Tensor.bool),
    *(_Tensor.view, _Tensor.reshape, _Tensor.flatten, _Tensor.squeeze, _Tensor.unsqueeze, _Tensor.permute, _Tensor.transpose),
    *(_Tensor.contiguous, _Tensor.t, _Tensor.detach, torch.flatten, torch.squeeze, torch.unsqueeze, torch.permute),
}


def _device_asked_for(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Optional[torch.device]:
    """Of a call of Tensor.to or Tensor.cuda; None: none, so that the tensor stays where it is."""
    if function is _Tensor.cuda:
        device = args[1] if len(args) > 1 else kwargs.get("device")
        device = torch.device("cuda") if device is None else torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    else:
        device = torch._C._nn._parse_to(*args[1:], **{name: value for name, value in kwargs.items() if name != "copy"})[0]
    if device is not None and device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


class _OnTheWay(torch.Tensor):
    """A tensor of the CPU as the function is given it: what is done with it is told to its `watcher`."""

    watcher: Any

    @classmethod
    def of(cls, tensor: torch.Tensor, watcher: Any) -> "_OnTheWay":
        made = tensor.as_subclass(cls)
        made.watcher = watcher
        return made

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            if function in _METADATA or (function in _LAYOUT and is_dense(args[0])):
                return function(*args, **kwargs)
            watcher = _watcher_among((args, kwargs))
            return function(*args, **kwargs) if watcher is None else watcher.use(function, args, kwargs)


def _watcher_among(value: Any) -> Any:
    if isinstance(value, _OnTheWay):
        return value.watcher
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return None
    return next((watcher for watcher in map(_watcher_among, value) if watcher is not None), None)


class _Look:
    """Sees what an eager call does with one."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.devices: set[Optional[torch.device]] = set()  # None: it was used where it is
        self.tensor = tensor
        self._version = tensor._version if _can_be_value(tensor) else None

    def is_value(self) -> bool:
        """Whether it was used on the host alone, and only read."""
        return self.devices == {None} and self._version is not None and self.tensor._version == self._version

    def use(self, function: Any, args: Any, kwargs: Any) -> Any:
        if function in _EXACT:
            return _OnTheWay.of(function(*args, **kwargs), self)
        is_copy = function in _COPIES and isinstance(args[0], _OnTheWay)
        self.devices.add(_device_asked_for(function, args, kwargs) if is_copy else None)
        return function(*args, **kwargs)


class _Arrived:
    """Gives the function the tensor that is on the device already."""

    def __init__(self, there: torch.Tensor, is_capture: bool, first: "Optional[_Arrived]" = None) -> None:
        self.there = there
        self.first = self if first is None else first  # of those that were made of one another
        self.is_capture = is_capture
        self.misuse = ""

    def use(self, function: Any, args: Any, kwargs: Any) -> Any:
        if function in _COPIES and isinstance(args[0], _OnTheWay) and _device_asked_for(function, args, kwargs) == self.there.device:
            result = function(self.there, *args[1:], **kwargs)
            return result.clone() if result is self.there else result  # the function may write into what it is given
        if function in _EXACT:
            behind = _Arrived(function(self.there, *args[1:], **kwargs), self.is_capture, self.first)
            return _OnTheWay.of(function(*args, **kwargs), behind)
        self.first.misuse = f"the function uses an input of the CPU by {getattr(function, '__name__', 'an operation')}"
        if self.is_capture:
            refuse(f"{self.first.misuse}, and not only to bring it to the device", "bring it to the device before the call")
        return function(*args, **kwargs)


def _with_tensors(args: Any, kwargs: Any, positions: Sequence[int], make: Callable[[int, torch.Tensor], torch.Tensor]) -> Any:
    """The arguments with others in the place of some of their tensors, counted as of_arguments() does: by names."""
    at = -1

    def renewed(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal at
        at += 1
        return make(at, tensor) if at in positions else tensor

    return _renewed(args, kwargs, lambda leaf: isinstance(leaf, torch.Tensor), renewed)


def _renewed(args: Any, kwargs: Any, which: Callable[[Any], bool], make: Callable[[Any], Any]) -> Any:
    made = with_leaves((args, dict(sorted(kwargs.items()))), which, make)
    return made[0], {name: made[1][name] for name in kwargs}


def _plain(tree: Any) -> Any:
    return with_leaves(tree, lambda leaf: isinstance(leaf, _OnTheWay), lambda leaf: leaf.as_subclass(torch.Tensor))


_MOST_BYTES = 64 << 10  # of an input whose values are compared in each call
_MOST_VALUES = 64  # that are known of one function


def _can_be_value(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.nbytes <= _MOST_BYTES and not tensor.is_inference()


class _Value:
    """An input of the CPU as part of a signature: there is one object for the same values."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        with torch.inference_mode(False):  # which would not count writes
            self.tensor = tensor.clone()

    def __repr__(self) -> str:
        return repr(self.tensor)


class _Values:
    """Those of one function, the last ones that it was called with. Any thread may ask."""

    def __init__(self) -> None:
        self._known: "collections.OrderedDict[tuple, _Value]" = collections.OrderedDict()
        self._lock = threading.Lock()

    def of(self, tensor: torch.Tensor) -> _Value:
        dense = tensor.detach().resolve_conj().resolve_neg().contiguous()
        key = tensor.dtype, tuple(tensor.shape), tensor.stride(), dense.view(-1).view(torch.uint8).numpy().tobytes()
        with self._lock:
            value = self._known.get(key)
            if value is None or value.tensor._version:  # a caller was given it, and has written there
                value = self._known[key] = _Value(tensor)
                if len(self._known) > _MOST_VALUES:
                    self._known.popitem(last=False)
            self._known.move_to_end(key)
        return value


class Result(NamedTuple):
    value: Any


class Arrivals:
    """Of one function: which of its inputs arrive, and the graphs of calls whose inputs have.

    Args:
        function: the function.
        graphed: makes a graphed function of it whose eager runs call what it is given in place of the function.
        deliver: is told of calls whose inputs the library can bring to the device by itself: see GraphedCache.deliver().
    """

    def __init__(
        self,
        function: Callable[..., Any],
        graphed: Callable[[Callable[..., Any]], Any],
        deliver: Callable[..., None],
    ) -> None:
        self._function = function
        self._graphed = graphed
        self._deliver = deliver
        self._known: dict[tuple, Optional[_Brought]] = {}
        self.are_expected = False

    def expect(self, leaves: Sequence[torch.Tensor]) -> bool:
        """Some inputs are on the CPU, and the function computes on another device. Whether they may be arriving."""
        self.are_expected = True
        key = self._key(leaves)
        return key is not None and key not in self._known

    @staticmethod
    def _key(leaves: Sequence[torch.Tensor]) -> Optional[tuple]:
        positions = tuple(i for i, one in enumerate(leaves) if one.device.type == "cpu" and type(one) is torch.Tensor)
        if not positions or any(leaves[i].requires_grad for i in positions):
            return None
        return len(leaves), positions, tuple(is_dense(leaves[i]) for i in positions)

    def call(self, leaves: Sequence[torch.Tensor], args: Any, kwargs: Any) -> Optional[Result]:
        """The result of a call with inputs that arrive, or that looks whether they do; None: there are none."""
        key = self._key(leaves)
        if key is None or not _C.may_deliver():
            return None
        if key not in self._known:
            return self._look(key, args, kwargs)
        brought = self._known[key]
        if brought is None or brought.misuse or not brought.takes(leaves):
            return None
        result = Result(brought.call(leaves, args, kwargs))
        brought.offer(leaves, self._deliver)
        return result

    def forget(self) -> None:
        for graphed in self.functions():
            graphed.reset()
        self._known.clear()

    def functions(self) -> list[Any]:
        return [brought.graphed for brought in self._known.values() if brought is not None]

    def _look(self, key: tuple, args: Any, kwargs: Any) -> Result:
        looks: dict[int, _Look] = {}

        def watched(position: int, tensor: torch.Tensor) -> torch.Tensor:
            looks[position] = _Look(tensor)
            return _OnTheWay.of(tensor, looks[position])

        args, kwargs = _with_tensors(args, kwargs, key[1], watched)
        result = _plain(self._function(*args, **kwargs))
        values = [position for position, look in looks.items() if look.is_value()]
        arriving = [position for position in looks if position not in values]
        devices = set().union(*(looks[position].devices for position in arriving))  # one that is not used at all is brought, too
        device = devices.pop() if len(devices) == 1 else None
        can_be = device is not None and device.type == "cuda" if arriving else True
        self._known[key] = _Brought(self._function, self._graphed, device, arriving, values) if can_be else None
        return Result(result)


class _Brought:
    """Calls whose inputs at some positions are brought to the device before, and at others are part of the signature."""

    def __init__(
        self,
        function: Callable[..., Any],
        graphed: Callable[..., Any],
        device: Any,
        arriving: Sequence[int],
        values: Sequence[int],
    ) -> None:
        self._function = function
        self._device = device
        self._arriving = arriving
        self._values = values
        self._of_values = _Values()
        self._here = threading.local()
        self.misuse = ""  # from then on they stay where they are
        self.graphed = graphed(self._run)

    @property
    def is_plain(self) -> bool:
        """Whether a call is one of `graphed` with what has arrived, and nothing else."""
        return not self.misuse and not self.graphed.handed_on.places

    def offer(self, leaves: Sequence[torch.Tensor], deliver: Callable[..., None]) -> None:
        """After a call: the library may bring such inputs by itself, as long as it knows the call."""
        if self._values or not self.is_plain or not self.graphed._cache.knows_calls():
            return
        inputs = [leaves[i] for i in self._arriving]
        if all(is_dense(one) and one.numel() for one in inputs):
            deliver(self, self._arriving, leaves, [torch.empty_like(one, device=self._device) for one in inputs])

    def takes(self, leaves: Sequence[torch.Tensor]) -> bool:
        return all(_can_be_value(leaves[i]) for i in self._values)

    def call(self, leaves: Sequence[torch.Tensor], args: Any, kwargs: Any) -> Any:
        args, kwargs = self._brought(leaves, args, kwargs)
        try:
            return self.graphed(*args, **kwargs)
        finally:
            self.end()

    def begin(self, state: Any, args: Any, kwargs: Any) -> Any:
        """The same for a call whose state is known. end() follows."""
        args, kwargs = self._brought(of_arguments(args, kwargs)[0], args, kwargs)
        return self.graphed._call_in(state, args, kwargs)

    def end(self) -> None:
        self._here.pairs = {}

    def _brought(self, leaves: Sequence[torch.Tensor], args: Any, kwargs: Any) -> Any:
        """The arguments with tensors that have arrived; while the call runs, it is known what they stand for."""
        pairs: dict[int, tuple[Any, Any]] = {i: (leaves[i], self._bring(leaves[i])) for i in self._arriving}
        pairs.update((i, (leaves[i], self._of_values.of(leaves[i]))) for i in self._values)
        self._here.pairs = pairs
        return _with_tensors(args, kwargs, [*pairs], lambda i, tensor: pairs[i][1])

    def _bring(self, tensor: torch.Tensor) -> torch.Tensor:
        """The host does not wait for it, and may write into the tensor at once."""
        return torch.empty_like(tensor, pin_memory=True).copy_(tensor).to(self._device, non_blocking=True)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        """The function, in an eager call of the graphed one or in its capture, which has inputs of its own."""
        pairs = getattr(self._here, "pairs", {})
        watchers: list[_Arrived] = []
        read: list[tuple[torch.Tensor, int]] = []  # on the host, and their versions

        def caller_s(value: _Value) -> torch.Tensor:
            """The caller's own tensor; in a capture, one that stays."""
            pair = None if _C.is_recording() else pairs.get(self._values[len(read)])
            tensor = value.tensor if pair is None else pair[0]
            read.append((tensor, tensor._version))
            return tensor

        args, kwargs = _renewed(args, kwargs, lambda leaf: type(leaf) is _Value, caller_s)

        def here(position: int, there: torch.Tensor) -> torch.Tensor:
            known = pairs.get(position)
            is_capture = known is None or known[1] is not there
            watchers.append(_Arrived(there, is_capture))
            return _OnTheWay.of(torch.empty_like(there, device="cpu") if known is None or is_capture else known[0], watchers[-1])

        args, kwargs = _with_tensors(args, kwargs, self._arriving, here)
        result = _plain(self._function(*args, **kwargs))
        self.misuse = next((one.misuse for one in watchers if one.misuse), self.misuse)
        if any(tensor._version != version for tensor, version in read):
            self.misuse = "the function writes an input of the CPU"
            if _C.is_recording():
                refuse(f"{self.misuse}, which a replay would not do", "let it write into a copy: input.clone()")
        return result

"""`pianola.RngTracker`: streams of random numbers by name, also where activations are computed twice."""

import contextlib
import sys
from typing import Any, Callable, Iterator, Optional

import torch
import torch.utils.checkpoint as torchs

from ._device import Device, as_device
from ._errors import refuse
from ._load import _C
from ._structure import tensors_of


class RngTracker(_C.RngTracker):
    """Named streams of random numbers beside the device's default one, for dropout that differs between the ranks of a
    tensor-parallel group.

        tracker = pianola.RngTracker("cuda")
        tracker.add("model-parallel", seed + rank)
        with tracker.fork("model-parallel"):
            x = torch.nn.functional.dropout(x, 0.1)   # draws from that stream

    A captured step may contain forks: replays draw from the named stream and advance it, as eager runs do. Pass
    generators=tracker.generators() to the capture.

    Args:
        device: None: the current CUDA device where there is one, else the CPU.
    """

    def __init__(self, device: Device = None) -> None:
        self._device = as_device(device)
        super().__init__(self._device)

    def fork(self, name: str) -> "_C.RngFork":
        """A context: random numbers drawn inside come from that stream.

        Raises:
            UsageError: there is no such stream, it is forked already, or torch.utils.checkpoint is recomputing activations: it
                puts back the default generators only, so this stream would draw other numbers.
            CaptureError: a capture is open and does not know the stream.
        """
        if torch._C._current_graph_task_id() != -1 and self._is_recomputed_by_torch():
            refuse(
                f"random stream {name!r} is forked while torch.utils.checkpoint recomputes activations: it would draw other numbers than the first time",
                "use RngTracker.checkpoint(), which draws the same numbers",
            )
        return super().fork(name)

    def checkpoint(self, function: Callable[..., Any], *args: Any, use_reentrant: bool = False, **kwargs: Any) -> Any:
        """torch.utils.checkpoint.checkpoint() for functions that draw from these streams. The recomputation draws the same
        numbers again, from the streams and from the default generators of their device and of the CPU. Works eagerly and
        captured; captured, forward and backward must be one graph.

        Args:
            function, args, use_reentrant, kwargs: as torch's; preserve_rng_state is always on.

        Raises:
            UsageError: an argument is on another GPU, whose generator nobody would put back.
            CaptureError: (in the backward pass) it was captured without its forward pass.
        """
        for tensor in tensors_of((args, kwargs)):
            if tensor.device not in (self._device, torch.device("cpu")):
                refuse(
                    f"checkpoint() was given a tensor on {tensor.device}, and the RngTracker is on {self._device}",
                    "use the RngTracker of the device that the function draws on",
                )
        again = _Again(self, function)
        return torchs.checkpoint(again, *args, use_reentrant=use_reentrant, preserve_rng_state=False, **kwargs)

    def _is_recomputed_by_torch(self) -> bool:
        """Whether the innermost recomputation that is running is not one of checkpoint()."""
        frame = sys._getframe()
        while frame.f_back is not None:
            frame = frame.f_back
            if frame.f_code is _Again.recompute.__code__ and frame.f_locals["self"].tracker is self:
                return False
            if frame.f_code.co_filename == torchs.__file__ and frame.f_code.co_name in _RECOMPUTES:
                return True
        return False


_RECOMPUTES = ("recompute_fn", "backward")  # without and with reentrant autograd


class _Again:
    """A function that is called twice, and draws the same numbers both times."""

    def __init__(self, tracker: RngTracker, function: Callable[..., Any]) -> None:
        self.tracker = tracker
        self.function = function
        self.place: Optional[_C.RngPlace] = None
        self.cpu_state: Optional[torch.Tensor] = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.place is not None:
            return self.recompute(self.place, args, kwargs)
        self.place = self.tracker.place()
        if self.tracker._device.type != "cpu":
            self.cpu_state = torch.get_rng_state()
        return self.function(*args, **kwargs)

    def recompute(self, place: "_C.RngPlace", args: tuple, kwargs: dict[str, Any]) -> Any:
        with self.tracker.rewind(place), _cpu_generator_at(self.cpu_state):
            return self.function(*args, **kwargs)


@contextlib.contextmanager
def _cpu_generator_at(state: Optional[torch.Tensor]) -> Iterator[None]:
    """For functions of a GPU that draw on the CPU as well; None: it is one of the tracker's."""
    with torch.random.fork_rng(devices=(), enabled=state is not None):
        if state is not None:
            torch.set_rng_state(state)
        yield

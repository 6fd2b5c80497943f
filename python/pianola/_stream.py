"""`pianola.Stream`, `stream` and `current_stream`: torch.cuda's, and stand-ins for them on machines without a GPU."""

import contextlib
from typing import Any, ContextManager, Optional, Union

import torch

from ._device import Device, as_device
from ._load import _C


class CPUStream:
    """The one stream of the CPU: work is done when its call returns, so there is nothing to wait for."""

    device = torch.device("cpu")

    def wait_stream(self, stream: Any) -> None:
        """Returns at once."""

    def wait_event(self, event: Any) -> None:
        """Returns at once."""

    def synchronize(self) -> None:
        """Returns at once."""

    def query(self) -> bool:
        """Whether all work is done: always."""
        return True

    def __enter__(self) -> "CPUStream":
        return self

    def __exit__(self, *exception: Any) -> None:
        return None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CPUStream)

    def __hash__(self) -> int:
        return hash(CPUStream)

    def __repr__(self) -> str:
        return "pianola.Stream(device='cpu')"


AnyStream = Union["torch.cuda.Stream", CPUStream]


# Named as torch.cuda.Stream, which it makes where there is a GPU.
def Stream(device: Device = None, priority: int = 0) -> AnyStream:  # noqa: N802
    """A torch.cuda.Stream, or, where there is no GPU or `device` is the CPU, a stand-in whose methods return at once."""
    device = as_device(device)
    return torch.cuda.Stream(device, priority=priority) if device.type == "cuda" else CPUStream()


def current_stream(device: Device = None) -> AnyStream:
    """torch.cuda.current_stream(), or the stand-in."""
    device = as_device(device)
    return torch.cuda.current_stream(device) if device.type == "cuda" else CPUStream()


def stream(stream: Optional[AnyStream]) -> ContextManager[Any]:
    """torch.cuda.stream(): a context in which `stream` is the current one. Nothing for the stand-in and None."""
    if stream is None or isinstance(stream, CPUStream):
        return contextlib.nullcontext(stream)
    return torch.cuda.stream(stream)


def is_current_stream_capturing() -> bool:
    """Whether what this thread calls is recorded: by the tape, or on the current CUDA stream. False while a capture warms up."""
    if _C.is_recording():
        return True
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()

"""What holds for Python code while it is warmed up and recorded."""

import contextlib
import functools
import os
import sys
import threading
from types import FrameType
from typing import Any, Callable, Iterator, NamedTuple, Optional, Union

import torch
from torch.utils.checkpoint import set_checkpoint_early_stop

from ._errors import refuse
from ._replaced import Replaced

# Their frames are not the user's.
_HIDDEN = tuple(os.path.join(os.path.dirname(os.path.abspath(str(file))), "") for file in (torch.__file__, __file__))


def users_line() -> str:
    """"train_step at train.py:12", as the library's messages say it."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HIDDEN):
        frame = frame.f_back
    return f"{frame.f_code.co_name} at {os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def _pickling() -> str:
    """torch.save pickles, too."""
    frame: Optional[FrameType] = sys._getframe()
    while frame is not None and frame.f_code is not torch.save.__code__:
        frame = frame.f_back
    return "pickle" if frame is None else "torch.save"


class _Read(NamedTuple):
    """A function that reads a CPU tensor's values and that no operation of ATen shows. On CUDA such a read breaks the
    capture by itself; on the CPU it would go through and freeze the value in silence."""

    owner: Any
    name: str
    text: Union[str, Callable[[], str]]
    rule: str = "PG103"


# item(), bool() and the like are operations of ATen, which the library refuses itself.
_READS = (
    _Read(torch.Tensor, "cpu", "Tensor.cpu"),
    _Read(torch.Tensor, "numpy", "Tensor.numpy"),
    _Read(torch.Tensor, "tolist", "Tensor.tolist"),
    _Read(torch.Tensor, "__array__", "Tensor.__array__"),
    _Read(torch.Tensor, "__repr__", "Tensor.__repr__", "PG104"),
    _Read(torch.Tensor, "__dlpack__", "Tensor.__dlpack__"),
    _Read(torch.utils.dlpack, "to_dlpack", "to_dlpack()"),
    _Read(torch, "to_dlpack", "to_dlpack()"),
    _Read(torch.Tensor, "__reduce_ex__", _pickling),
    _Read(torch.UntypedStorage, "__getitem__", "UntypedStorage.__getitem__"),
    _Read(torch.UntypedStorage, "tolist", "UntypedStorage.tolist"),
    _Read(torch.UntypedStorage, "__reduce__", _pickling),
)


class _Recording(threading.local):
    depth = 0  # how many recordings on the CPU this thread is in


_recording = _Recording()


def _is_on_cpu(subject: Any) -> bool:
    with torch._C.DisableTorchFunction():  # neither subclasses nor modes of the user's are to see the question
        return bool(subject.device.type == "cpu")


def _looks_only() -> bool:
    """copy.copy() takes a tensor's description, not its values."""
    return sys._getframe(2).f_globals.get("__name__") == "copy"


def _watched(read: _Read, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def reader(subject: Any, *args: Any, **kwargs: Any) -> Any:
        if _recording.depth and _is_on_cpu(subject) and not (read.name == "__reduce_ex__" and _looks_only()):
            who = read.text if isinstance(read.text, str) else read.text()
            refuse(
                f"{who} reads a tensor's values on the host, which is not allowed during capture",
                "keep the value on the device (torch.where, masked arithmetic), or leave this part out of the capture",
                where=users_line(),
                kind="CaptureError",
                rule=read.rule,
            )
        return original(subject, *args, **kwargs)

    return reader


_host_reads = Replaced([(one.owner, one.name, functools.partial(_watched, one)) for one in _READS])


@contextlib.contextmanager
def _refusing_host_reads() -> Iterator[None]:
    here = _recording.__dict__  # of this thread, wherever the recording ends
    with _host_reads:
        here["depth"] = here.get("depth", 0) + 1
        try:
            yield
        finally:
            here["depth"] -= 1


@contextlib.contextmanager
def scope(device: torch.device) -> Iterator[None]:
    """A context for code that is warmed up and recorded on this device."""
    reads = _refusing_host_reads() if device.type == "cpu" else contextlib.nullcontext()
    # A recomputation that stops early leaves its last operation by an exception, and a recording does not know its result.
    with set_checkpoint_early_stop(False), reads:
        yield

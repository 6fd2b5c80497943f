"""What holds for Python code while it is warmed up and recorded."""

import contextlib
import os
import sys
from typing import Any, Iterator

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import set_checkpoint_early_stop

from .errors import refuse

# item(), bool() and the like are operations of ATen, which the library refuses itself.
_NAMES = ("cpu", "numpy", "tolist", "__array__", "__repr__", "__dlpack__")
_RULES = {"__repr__": "PG104"}
_READS = {getattr(torch.Tensor, name): name for name in _NAMES}
# Their frames are not the user's.
_HIDDEN = tuple(os.path.join(os.path.dirname(os.path.abspath(str(file))), "") for file in (torch.__file__, __file__))


def _users_line() -> str:
    """"train_step at train.py:12", as the library's messages say it."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HIDDEN):
        frame = frame.f_back
    return f"{frame.f_code.co_name} at {os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


class _RefuseHostReads(TorchFunctionMode):
    """Refuses what reads a CPU tensor's values and what no operation of ATen shows. On CUDA such a read breaks the
    capture by itself; on the CPU it would go through and freeze the value in silence."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = _READS.get(func)
        if name is not None and args[0].device.type == "cpu":
            refuse(
                f"Tensor.{name} reads a tensor's values on the host during capture, which a graph cannot do",
                "keep the value on the device (torch.where, masked arithmetic), or leave this part out of the capture",
                where=_users_line(),
                kind="CaptureError",
                rule=_RULES.get(name, "PG103"),
            )
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def scope(device: torch.device) -> Iterator[None]:
    """A context for code that is warmed up and recorded on this device."""
    reads = _RefuseHostReads() if device.type == "cpu" else contextlib.nullcontext()
    # A recomputation that stops early leaves its last operation by an exception, and a recording does not know its result.
    with set_checkpoint_early_stop(False), reads:
        yield

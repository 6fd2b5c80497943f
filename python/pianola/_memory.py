"""`pianola.predict_memory`: what a graph of a step would take, before there is one."""

from typing import Any, Callable, Iterable, Optional

from ._audit.target import Batches
from ._device import Device, as_device
from ._errors import refuse
from ._load import _C


def predict_memory(
    step: Callable[..., Any], batches: Optional[Iterable[Any]] = None, *, device: Device = None, warmup: int = 1
) -> "_C.MemoryForecast":
    """Runs a step, notes what torch's allocator hands out, and tells what a graph of it would take.

        print(pianola.predict_memory(train_step, batches=[(x, y)]))

    The runs are the step's own: parameters move on. On CUDA the pool is that of `torch.cuda.graph`, but for the workspaces of cuBLAS,
    and for what other streams hold on to until a capture is over. On the CPU it is what it would be there if kernels took the same
    scratch.

    Args:
        step: one iteration.
        batches: the arguments of each call, in turn: tuples of arguments, dicts of keyword arguments, or single arguments.
        device: None: the current CUDA device where there is one, else the CPU.
        warmup: runs before. What the first makes and keeps (states of optimizers) is no part of the forecast then.

    Returns:
        What was found: `bound_bytes`, `pool_bytes`, `planned_bytes`, `fits`, and more; `str()` of it is the report, `to_html()` a page with
        a picture of who lives when.

    Raises:
        UsageError: warmup is negative, batches are no arguments, or a capture is open.
        DeviceError: there is no such device.
    """
    if not callable(step):
        refuse(f"predict_memory() was given a {type(step).__name__}, which cannot be called", "give it a function that runs one iteration")
    arguments = Batches(batches)

    def run() -> None:
        args, kwargs = arguments.next()
        step(*args, **kwargs)

    return _C.predict_memory(run, device=as_device(device), warmup=warmup)

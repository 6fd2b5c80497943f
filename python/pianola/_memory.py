"""What a graph of a step would take, before there is one; what graphs have, and who has what of a device."""

import contextlib
from typing import Any, Callable, Iterable, Iterator, Optional

import torch

from ._audit.target import Arguments, Batches
from ._device import Device, as_device
from ._errors import refuse
from ._graphed import function_of, graphed
from ._load import _C
from ._structure import tensors_of

_MOST_CALLS = 16  # until one is replayed


def predict_memory(
    step: Callable[..., Any], batches: Optional[Iterable[Any]] = None, *, device: Device = None, warmup: int = 1
) -> "_C.MemoryForecast":
    """Runs a step, notes what torch's allocator hands out, and tells what a graph of it would take.

        print(pianola.predict_memory(train_step, batches=[(x, y)]))

    The runs are the step's own: parameters move on. On CUDA the pool is that of `torch.cuda.graph`, but for the workspaces of cuBLAS,
    and for what other streams hold on to until a capture is over. On the CPU it is what it would be there if kernels took the same
    scratch.

    Args:
        step: one iteration; of a graphed function the function, which its replays do not run.
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
    arguments, function = Batches(batches), function_of(step)

    def run() -> None:
        args, kwargs = arguments.next()
        function(*args, **kwargs)

    return _C.predict_memory(run, device=as_device(device), warmup=warmup)


def predict_buckets(step: Callable[..., Any], batches: Iterable[Any], *, device: Device = None, warmup: int = 1) -> "_C.BucketForecast":
    """What graphs of a step would take, one for each of several batches: lengths, batch sizes.

        print(pianola.predict_buckets(train_step, [(x[:, :length], y[:, :length]) for length in (128, 256, 512)]))

    Each batch is a bucket, in the order of the captures. Of each it is told what `predict_memory()` tells; of all what pools of their own
    take together, and what one takes that they share, `GraphPool(device, plan_memory=True)`: all that a step's runs free, the largest
    needs once. What the step returns is kept for each bucket, as a caller of the graphs would keep it.

    Args:
        step: as for `predict_memory()`.
        batches: the arguments of each bucket's calls: tuples of arguments, dicts of keyword arguments, or single arguments.
        device: as for `predict_memory()`.
        warmup: runs before, of each bucket.

    Returns:
        What was found: `buckets`, `pools_bytes`, `shared_bytes`, `fits`, and more; `str()` of it is the report.

    Raises:
        UsageError, DeviceError: as `predict_memory()`.
    """
    if not callable(step):
        refuse(f"predict_buckets() was given a {type(step).__name__}, which cannot be called", "give it a function that runs one iteration")
    if batches is None:
        refuse("predict_buckets() was given no batches", "give it one for each bucket: [(x, y), ...]")
    listed = batches if isinstance(batches, (torch.Tensor, dict, str)) or not isinstance(batches, Iterable) else list(batches)
    entries = Batches(listed)
    arguments = [entries.next() for _ in listed] or [entries.next()]  # which refuses
    kept: dict[int, Any] = {}
    function = function_of(step)

    def run(bucket: int) -> None:
        args, kwargs = arguments[bucket]
        kept[bucket] = function(*args, **kwargs)

    names = [_shapes_of(one) for one in arguments]
    inputs = [tensors_of(one) for one in arguments]
    return _C.predict_buckets(run, names, inputs, device=as_device(device), warmup=warmup)


def _shapes_of(arguments: Arguments) -> str:
    """A name for a bucket: "[8, 128], [8]"."""
    tensors = tensors_of(arguments)
    return ", ".join(str(list(tensor.shape)) for tensor in tensors) if tensors else "no tensors"


def memory(device: Device = None) -> "_C.ProcessMemory":
    """Who has what of a device's memory: tensors, pools of graphs, executables, and what `watch_memory()` saw.

        print(pianola.memory())

    Args:
        device: None: the current CUDA device where there is one, else the CPU, of which only the pools are known.

    Raises:
        DeviceError: there is no such device.
    """
    return _C.process_memory(as_device(device))


def memory_of_graphs(device: Device = None) -> "list[_C.GraphMemory]":
    """What each captured graph has, as `Graph.memory()` tells it; also graphs inside of `graphed` and `FullIteration`.

        for one in pianola.memory_of_graphs():
            print(one)

    Args:
        device: as for `memory()`.

    Raises:
        UsageError: a call of a graph is running.
    """
    return _C.memory_of_graphs(as_device(device))


@contextlib.contextmanager
def watch_memory(device: Device = None) -> Iterator[None]:
    """While it is open, finds out who takes memory outside of torch's allocator: CUDA's context, libraries, kernels at their first run.

        with pianola.watch_memory():  # before CUDA is first used
            model = Model().cuda()
            train_step(batch)
        print(pianola.memory())

    After each operation of this thread and of its backward passes the driver is asked what is left: steps run slower meanwhile. On the
    CPU it does nothing.

    Args:
        device: as for `memory()`.

    Raises:
        UsageError: a capture is open on this thread.
        DeviceError: there is no such device.
    """
    watch = _C.MemoryWatch(as_device(device))
    try:
        yield
    finally:
        del watch


def capture_memory(
    step: Callable[..., Any], batches: Optional[Iterable[Any]] = None, *, device: Device = None, warmup: int = 1
) -> "_C.CapturedMemory":
    """What `predict_memory()` tells of a step, what the graph that `graphed` makes of it then has, and who has what beside it.

    Raises:
        UsageError: as `predict_memory()`, or no graph was made of it, and why.
    """
    where, arguments, step = as_device(device), Batches(batches), function_of(step)
    args, kwargs = arguments.next()
    forecast = predict_memory(lambda: step(*args, **kwargs), device=where, warmup=warmup)
    known = {one.number for one in memory_of_graphs(where)}
    graphed_step = graphed(step, on_fallback=lambda reason: None)
    for _ in range(_MOST_CALLS):
        graphed_step(*args, **kwargs)
        if any(one.replays for one in graphed_step.info().signatures):
            break
    made = [one for one in memory_of_graphs(where) if one.number not in known]
    if not made:
        reasons = [one.reason.splitlines()[0] for one in graphed_step.info().signatures if one.reason]
        reason = reasons[0] if reasons else "its calls differ from one another"
        refuse(f"no graph was made of the step: {reason}", "mend that; what a graph would take is told without a capture, too")
    return _C.CapturedMemory(forecast, max(made, key=lambda one: one.own_bytes), memory(where))

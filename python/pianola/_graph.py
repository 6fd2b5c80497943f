"""`pianola.Graph`: work given as a function, recorded once and replayed."""

import os
from typing import Any, Callable, Iterable, Mapping, Optional, Sequence, Union

import torch

from . import _recording
from ._arguments import as_bytes
from ._device import Device, as_device
from ._errors import refuse
from ._graph_pool import pool_id
from ._load import _C
from ._stream import CPUStream
from ._uncopied import Uncopied


def capture_options(
    device: torch.device,
    *,
    warmup: int = 0,
    pool: Any = None,
    generators: Iterable[torch.Generator] = (),
    inputs: Sequence[torch.Tensor] = (),
    branches: Union[int, str] = 0,
    parallel: "Optional[_C.ParallelOptions]" = None,
    capture_error_mode: str = "thread_local",
    restore: bool = True,
    trace: bool = True,
    memory_limit: int = 0,
    plan_memory: bool = False,
    accept_capture_path: bool = False,
    instantiate: bool = True,
    allow_empty: bool = False,
    stream: Any = None,
    check: str = "standard",
    names: Optional[Mapping[str, torch.Tensor]] = None,
) -> "_C.CaptureOptions":
    """The library's options, from what Python users name them."""
    if isinstance(inputs, torch.Tensor):  # whose rows are no inputs
        refuse("inputs must be a list of tensors, got a tensor", "pass inputs=[x]")
    return _C.CaptureOptions(
        device=device,
        warmup=warmup,
        pool=pool_id(pool),
        generators=list(generators),
        inputs=list(inputs),
        branches=branches,
        parallel=parallel,
        mode=capture_error_mode,
        restore=restore,
        trace=trace,
        memory_limit=as_bytes(memory_limit, "memory_limit"),
        plan_memory=plan_memory,
        accept_capture_path=accept_capture_path,
        instantiate=instantiate,
        allow_empty=allow_empty,
        stream=None if isinstance(stream, CPUStream) else stream,
        check=check,
        names=dict(names or {}),
    )


class Graph(Uncopied, _C.Graph):
    """Work that is recorded once and replayed with one launch.

        graph = pianola.Graph("cuda")
        graph.capture(lambda: step(x, y))
        x.copy_(batch)
        graph.replay()

    On a CUDA device it is a CUDA graph, on the CPU the tape. Addresses and Python values are frozen, tensors that the step
    made are overwritten by each replay, and a replay computes what eager would, bit for bit.
    """

    _copied_instead = "capture the step once more, by another graph"

    def __init__(self, device: Device = None) -> None:
        super().__init__(as_device(device))

    def capture(self, step: Callable[[], Any], *, warmup: int = 3, **options: Any) -> None:  # type: ignore[override]
        """Runs `step` eagerly `warmup` times, then records it. Everything it wrote is put back as it was.

        Args:
            step: called without arguments; what it returns is dropped, so keep results in variables of your own.
            warmup: eager runs before recording.
            pool: memory to share: a GraphPool, another graph's pool(), graph_pool_handle(), a torch.cuda.MemPool.
            generators: torch.Generators, besides the device's default one, that the step draws from.
            inputs: tensors that the step reads and that `replay(*sources)` fills.
            branches: run independent work at once, on at most this many parallel lanes; 4 suits most steps. The graph stays
                as captured if that gains nothing: info().branches says why. "auto": 4, where a trial can be made and finds them
                faster; with less memory.
            parallel: a ParallelOptions: how `branches` goes about it.
            capture_error_mode: "thread_local", "global" or "relaxed", as in torch.cuda.graph.
            restore: put back what warm-up and recording wrote. Off: the warm-up runs count as steps.
            trace: record the operations, so that errors name them and shared pools are checked.
            memory_limit: bytes that the graph's pool may take, as `predict_memory` tells them for the last warm-up run; 0: no limit. A
                step that takes more is refused before anything is recorded, and so is one whose `inputs` alone take more.
            plan_memory: lay the blocks of the pool out by a plan, made of the last warm-up run, without the fragments that torch's
                allocator leaves: they take little more than the step has in use at a time. Other graphs of the pool do not use that
                memory. Wants a warm-up run; with `branches` the step is recorded twice. Nothing on the CPU, where all results are kept.
            accept_capture_path: accept a recording whose operations or numbers differ from those of the last warm-up call,
                because a library asked whether it is captured. Off: it is refused, if the last two warm-up calls did the
                same.
            stream: a torch.cuda.Stream to capture on.
            check: "strict" makes each replay check that the tensors it uses from outside are still held by somebody and at
                their address; a ReplayError names one that is not.
            names: what you call some tensors, for messages: dict(model.named_parameters()).

        Raises:
            CaptureError: the step cannot be captured, or did something else than in the warm-up; names operation and line.
            OutOfMemoryError: memory_limit is too low, or the device ran out of memory; it is a torch.OutOfMemoryError, too.
            UsageError: the graph holds a capture already, or an option is out of range.
            What `step` itself raises comes out unchanged. After any of them everything is as before.
        """
        with _recording.scope(self.device):
            super().capture(step, capture_options(self.device, warmup=warmup, **options))

    def update(self, step: Callable[[], Any], *, warmup: int = 3, **options: Any) -> None:  # type: ignore[override]
        """Captures `step`, as capture() does, in place of what the graph holds, and keeps the executable, which takes over the new
        capture's parameters: that costs a part of what making one does. For the same step with other tensors, shapes or numbers.

        After an exception the graph holds the earlier capture, and replays it as before; variables that the step assigned hold what it
        assigned last. Without one that capture is gone, as by reset(). Its memory is free only when the new one has its own: there has to
        be room for both in the pool.

        Args:
            step: as of capture().
            warmup: eager runs before recording.
            **options: those of capture(), without `branches`, and with as many `inputs` as the capture has. Without `pool` it is that
                of the earlier capture.

        Raises:
            CaptureError: as capture(). Or the step does other operations than the earlier capture, on the CPU as on a GPU; or CUDA
                cannot give the executable what they launch now, where other kernels were chosen for other shapes. Names operation
                and line.
            UsageError: nothing was captured; or the graph was captured with `branches` or without `trace`, communicates with other
                ranks, or has parts that stay eager; or as capture().
        """
        with _recording.scope(self.device):
            super().update(step, capture_options(self.device, warmup=warmup, **options))

    def pool(self) -> tuple[int, int]:
        """The name of the graph's pool, to share with the next graph."""
        return self.pool_id()

    def dump_lanes(self, file: "Union[str, os.PathLike[str]]") -> None:
        """Draws the lanes of `branches` as an SVG picture: what runs beside what, by modelled times.

        Raises:
            UsageError: nothing was captured, or without `branches`, or the file cannot be written.
        """
        super().dump_lanes(os.fspath(file))

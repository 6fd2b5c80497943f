"""Times of training steps: of the host, until the device is done, and the self CPU time that torch's profiler counts."""

import dataclasses
import itertools
import time
from pathlib import Path
from typing import Optional, Sequence

import torch

from .contenders import Step
from .workloads import Batch

_BURST = 10  # iterations between two waits for the device: fewer than fill its queue, which would hold the host up


def synchronize(device: torch.device) -> None:
    """Waits for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Loop:
    """Goes through the batches over and over."""

    def __init__(self, step: Step, batches: Sequence[Batch]) -> None:
        self._step = step
        self._batches = itertools.cycle(batches)

    def run(self, iterations: int) -> None:
        """Issues so many iterations; does not wait for the device."""
        for _ in range(iterations):
            self._step(*next(self._batches))


def host_and_wall_time(loop: Loop, iterations: int, device: torch.device) -> tuple[float, float]:
    """Microseconds of an iteration: until it is issued, and until it is done."""
    loop.run(2)
    synchronize(device)
    host = wall = 0
    for done in range(0, iterations, _BURST):
        start = time.perf_counter_ns()
        loop.run(min(_BURST, iterations - done))
        issued = time.perf_counter_ns()
        synchronize(device)
        host += issued - start
        wall += time.perf_counter_ns() - start
    return host / iterations / 1000, wall / iterations / 1000


@dataclasses.dataclass(frozen=True)
class SelfCpuTime:
    """Microseconds of an iteration."""

    total: float  # as key_averages().table() says it: "Self CPU time total"
    waits: float  # the part in which the host waits for the device, such as at the end of the run


def self_cpu_time(loop: Loop, iterations: int, device: torch.device, trace: Optional[Path] = None) -> SelfCpuTime:
    """Runs under torch's profiler.

    Counted is the time in operations and in calls of CUDA's runtime; not what Python or C++ does between them, nor what the
    profiler does not see, such as replays of the tape and calls of the driver. The host's time has all of it.

    Args:
        trace: where to leave the Chrome trace, compressed if the name ends in .gz.
    """
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    synchronize(device)
    # acc_events changes nothing in one cycle, but without it torch warns that there could be others.
    with torch.profiler.profile(activities=activities, acc_events=True) as profiler:
        loop.run(iterations)
        synchronize(device)
    if trace is not None:
        profiler.export_chrome_trace(str(trace))
    averages = profiler.key_averages()
    waits = sum(event.self_cpu_time_total for event in averages if event.key.endswith("Synchronize"))
    return SelfCpuTime(averages.self_cpu_time_total / iterations, waits / iterations)

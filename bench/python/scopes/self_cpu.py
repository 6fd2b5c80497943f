"""The self CPU time of training steps, which torch's profiler counts."""

import dataclasses
from pathlib import Path
from typing import Callable, Optional

import torch
from measuring import synchronize


@dataclasses.dataclass(frozen=True)
class SelfCpuTime:
    """Microseconds of an iteration."""

    total: float  # as key_averages().table() says it: "Self CPU time total"
    waits: float  # the part in which the host waits for the device, such as at the end of the run


def self_cpu_time(step: Callable[[], object], iterations: int, device: torch.device, trace: Optional[Path] = None) -> SelfCpuTime:
    """Runs under torch's profiler.

    Counted is the time in operations and in calls of CUDA's runtime; not what Python or C++ does between them, nor what the
    profiler does not see, such as replays of the tape and calls of the driver. The host's time has all of it.

    Args:
        trace: where to leave the Chrome trace, compressed if the name ends in .gz.
    """
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    synchronize()
    # acc_events changes nothing in one cycle, but without it torch warns that there could be others.
    with torch.profiler.profile(activities=activities, acc_events=True) as profiler:
        for _ in range(iterations):
            step()
        synchronize()
    if trace is not None:
        profiler.export_chrome_trace(str(trace))
    averages = profiler.key_averages()
    waits = sum(event.self_cpu_time_total for event in averages if event.key.endswith("Synchronize"))
    return SelfCpuTime(averages.self_cpu_time_total / iterations, waits / iterations)

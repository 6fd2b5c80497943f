"""Times calls that are made anyway."""

import statistics
import time
from collections import deque
from typing import Any, Callable

import torch


class Watch:
    """Times calls on the device of the step, and does not wait for them."""

    def __init__(self, device: torch.device) -> None:
        self._on_device = device.type == "cuda"
        self._pending: deque[tuple[Any, Any]] = deque()
        self._times: list[float] = []  # in us

    def run(self, call: Callable[[], Any], counts: Callable[[], bool]) -> Any:
        """@param counts  Whether the call that is over was a replay."""
        if not self._on_device:
            begin = time.perf_counter()
            result = call()
            took = 1e6 * (time.perf_counter() - begin)
            if counts():
                self._times.append(took)
            return result
        events = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        events[0].record()
        result = call()
        events[1].record()
        if counts():
            self._pending.append(events)
        return result

    def count(self) -> int:
        return len(self._times) + len(self._pending)

    def is_settled(self) -> bool:
        while self._pending and self._pending[0][1].query():
            begin, end = self._pending.popleft()
            self._times.append(1000.0 * begin.elapsed_time(end))
        return not self._pending

    def fastest(self) -> float:
        return min(self._times)

    def median(self) -> float:
        return statistics.median(self._times[1:])

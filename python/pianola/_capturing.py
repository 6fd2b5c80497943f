"""What code is told that asks whether the current stream is captured, while a step is watched.

Libraries take another path under a capture, which then records other operations than those that the step has made so far.
A graph should do what the step did before: so in a capture of ours they are told what they were told then. torch itself needs the
truth, and so does this package. Its optimizers ask in a way that differs from version to version, to refuse what is graphed well
here: they are not let ask.
"""

import contextlib
import functools
import sys
import threading
from typing import Any, Callable, Iterator

import torch
from torch.optim import Optimizer


class _Here(threading.local):
    def __init__(self) -> None:
        self.watched = 0


_here = _Here()
_truth: Callable[[], bool] = torch.cuda.graphs._cuda_isCurrentStreamCapturing  # type: ignore[attr-defined]


def _answer() -> bool:
    capturing = _truth()
    if not capturing or not _here.watched:
        return capturing
    asker = sys._getframe(2).f_globals.get("__name__", "")  # behind torch.cuda.is_current_stream_capturing()
    return asker.partition(".")[0] in ("torch", "pianola")


_check: Callable[[Any], None] = Optimizer._accelerator_graph_capture_health_check


@functools.wraps(_check)
def _check_unless_watched(optimizer: Any) -> None:
    if torch.compiler.is_compiling() or not _here.watched:
        _check(optimizer)


@contextlib.contextmanager
def unnoticed() -> Iterator[None]:
    """While it lasts, this thread's captures are not noticed."""
    torch.cuda.graphs._cuda_isCurrentStreamCapturing = _answer  # type: ignore[attr-defined]
    Optimizer._accelerator_graph_capture_health_check = _check_unless_watched  # type: ignore[assignment, method-assign]
    _here.watched += 1
    try:
        yield
    finally:
        _here.watched -= 1

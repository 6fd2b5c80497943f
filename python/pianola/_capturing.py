"""What code is told that asks whether the current stream is captured, while a step is watched.

Libraries take another path under a capture, which then records other operations than those that the step has made so far.
A graph should do what the step did before: so in a capture of ours they are told what they were told then. torch itself needs the
truth, but for its optimizers, which refuse what is graphed well here; and so does this package.
"""

import contextlib
import sys
import threading
from typing import Callable, Iterator

import torch


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
    if asker.startswith("torch.optim."):
        return False
    return asker.partition(".")[0] in ("torch", "pianola")


@contextlib.contextmanager
def unnoticed() -> Iterator[None]:
    """While it lasts, this thread's captures are not noticed."""
    torch.cuda.graphs._cuda_isCurrentStreamCapturing = _answer  # type: ignore[attr-defined]
    _here.watched += 1
    try:
        yield
    finally:
        _here.watched -= 1

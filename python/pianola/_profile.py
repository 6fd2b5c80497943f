"""`pianola.profile` and `pianola.decide`: does a graph help here, and which?"""

import os
from typing import Any, Callable, Optional, Union

from ._errors import refuse
from ._load import _C

_Path = Union[str, "os.PathLike[str]"]


def profile(
    step: Callable[[], Any],
    *,
    warmup: int = 3,
    iterations: int = 10,
    modules: bool = False,
    memory: bool = True,
    trace: Optional[_Path] = None,
) -> "_C.Profile":
    """Runs a step a few times and says whether a graph would help, and which.

        print(pianola.profile(lambda: train_step(batch)))

    Records with torch's profiler: on CUDA the device's work and the calls that issue it, everywhere ATen's operations. Without
    CUDA work the operations count as the work. A profiler slows the host, so the same number of runs is timed before without
    it; a graph is compared with that time.

    Args:
        step: one iteration.
        warmup: runs before.
        iterations: runs that are timed, and as many again that are recorded.
        modules: record the forward passes of modules too, to tell layers apart; slows Python down.
        memory: record what torch's allocator does, to tell how much memory a graph takes.
        trace: where to keep what was recorded, a Chrome trace; compressed if the name ends in .gz.

    Returns:
        What was found: `verdict`, `headline`, `scopes` with their predicted times and memory, and more; `str()` of it is the report,
        `to_html()` a page with pictures.

    Raises:
        UsageError: an option is out of range, nothing was recorded, or a profiler is active already.
    """
    return _C.profile(
        step,
        warmup=warmup,
        iterations=iterations,
        modules=modules,
        memory=memory,
        trace="" if trace is None else os.fspath(trace),
    )


def decide(
    path: _Path, *, range: Optional[str] = None, process: Optional[int] = None, device: Optional[int] = None
) -> "_C.Profile":
    """Judges an existing profile: a Chrome trace of torch.profiler, an SQLite file that Nsight Systems
    exported (`nsys export --type sqlite`), or a folder of `pianola profile`.

    Args:
        path: the profile.
        range: each entry of this annotation begins an iteration; None: iterations are found by what repeats.
        process: the process to look at, from 0; None: the one with most work.
        device: the number of the device; None: the one with most work.

    Raises:
        UsageError: the profile cannot be read, or there is no such range, process or device in it.
    """
    from . import _nsight  # which few need, and some Pythons have no sqlite3

    try:
        with _nsight.as_trace(path) as readable:
            return _C.load_profile(
                readable,
                range=range or "",
                process=-1 if process is None else process,
                device=-2 if device is None else device,
            )
    except _nsight.Refused as error:
        refuse(error.what, error.fix, error.where)

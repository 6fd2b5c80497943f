"""What a process holds: host memory that is in use, and device memory that torch has reserved."""

import ctypes
import gc
import os
import statistics
import sys

import torch


class _MallInfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    ]


_mallinfo2 = ctypes.CDLL(None).mallinfo2
_mallinfo2.restype = _MallInfo


def let_malloc_count() -> None:
    """Starts the program anew with Python's objects in malloc, which keeps an account; else they are in arenas of Python's."""
    if os.environ.get("PYTHONMALLOC") != "malloc":
        # And with what deterministic matrix products on CUDA want.
        environment = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", **os.environ, "PYTHONMALLOC": "malloc"}
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)


def host_bytes() -> int:
    """Bytes that malloc has handed out, to C++ and, after let_malloc_count(), to Python."""
    gc.collect()
    info = _mallinfo2()
    return int(info.uordblks + info.hblkhd)


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def reserved_bytes(device: torch.device) -> int:
    """Device memory that torch's allocator holds; 0 on the CPU, whose tensors are in malloc."""
    if device.type != "cuda":
        return 0
    torch.cuda.synchronize(device)
    return torch.cuda.memory_reserved(device)


def streams_with_memory(device: torch.device) -> int:
    """On how many streams torch's allocator holds memory."""
    if device.type != "cuda":
        return 0
    return len({segment["stream"] for segment in torch.cuda.memory_snapshot()})


def growth(samples: "list[int]") -> float:
    """From the middle third to the last, each by its median: libraries make workspaces when they first need them, and what is
    held at one moment is up to where the threads stand."""
    third = max(1, len(samples) // 3)
    return statistics.median(samples[-third:]) - statistics.median(samples[third:-third] or samples)


def slope(points: "list[tuple[float, float]]") -> float:
    """How steeply y rises with x: the median of the slopes between points, which steps of a library's tables do not move."""
    slopes = sorted(
        (there[1] - here[1]) / (there[0] - here[0])
        for i, here in enumerate(points)
        for there in points[i + 1 :]
        if there[0] != here[0]
    )
    return slopes[len(slopes) // 2] if slopes else 0.0

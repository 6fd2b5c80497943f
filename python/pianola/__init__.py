"""CUDA graphs for PyTorch: safe, fast and easy.

    import pianola

    @pianola.graphed                                   # zero effort: captures itself, per signature
    def train_step(x, y): ...

    layer = pianola.make_graphed_callables(layer, (x,))   # as torch.cuda.make_graphed_callables

    g = pianola.CUDAGraph()                            # as torch.cuda.CUDAGraph
    with pianola.graph(g):
        y = model(x)
    g.replay()

CPU tensors use the tape, which keeps the same promises without a GPU.
"""

from ._load import _C
from .auditing import audit
from .auto_graph import GraphedFunction, graphed
from .callables import make_graphed_callables
from .cuda_graph import CUDAGraph, graph
from .devices import Stream, current_stream, default_device, is_current_stream_capturing, stream
from .errors import (
    CaptureError,
    ConfigError,
    DeviceError,
    Error,
    GuardError,
    ReplayError,
    ScheduleError,
    UnsupportedError,
    UsageError,
)
from .graphed_forward import GraphedForward
from .pools import GraphPool, graph_pool_handle
from .step_graph import Graph
from .torch_compat import compat
from .verification import verify

GradPolicy = _C.GradPolicy
OutputPolicy = _C.OutputPolicy
ParallelOptions = _C.ParallelOptions
Schedule = _C.Schedule
__version__ = _C.version()

__all__ = [
    "CUDAGraph",
    "CaptureError",
    "ConfigError",
    "DeviceError",
    "Error",
    "GradPolicy",
    "Graph",
    "GraphPool",
    "GraphedForward",
    "GraphedFunction",
    "GuardError",
    "OutputPolicy",
    "ParallelOptions",
    "ReplayError",
    "Schedule",
    "ScheduleError",
    "Stream",
    "UnsupportedError",
    "UsageError",
    "audit",
    "compat",
    "current_stream",
    "default_device",
    "graph",
    "graph_pool_handle",
    "graphed",
    "is_current_stream_capturing",
    "make_graphed_callables",
    "stream",
    "verify",
]

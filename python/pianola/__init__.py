"""CUDA graphs for PyTorch: one launch replays a whole step, with the bits of eager.

    import pianola

    @pianola.graphed                                      # captures its own calls; what cannot be a graph runs eagerly
    def train_step(x, y): ...

    iteration = pianola.FullIteration(train_step)         # the whole iteration, all microbatches

    layer = pianola.make_graphed_callables(layer, (x,))   # as torch.cuda.make_graphed_callables

    g = pianola.CUDAGraph()                               # as torch.cuda.CUDAGraph
    with pianola.graph(g):
        y = model(x)
    g.replay()

    print(pianola.audit(train_step))                      # what would break a graph of it, with the lines
    print(pianola.verify(train_step))                     # does a graph of it compute what eager computes?
    print(pianola.profile(train_step))                    # would a graph help?

CPU tensors use the tape, which keeps the same promises without a GPU.
"""

from ._load import _C  # before all others: it says what is wrong with the torch that is installed
from ._process_groups import watch as _watch_process_groups
from ._resized_storages import watch as _watch_resized_storages

from . import fp8, optim
from ._audit import audit
from ._callables import make_graphed_callables
from ._checkpoint import Checkpoint
from ._clip_grad import clip_grad_norm_, clip_grad_value_, clip_gradients_norm_
from ._compat import compat
from ._cuda_graph import CUDAGraph, graph
from ._device import default_device
from ._errors import (
    CaptureError,
    ConfigError,
    CommunicationError,
    DeviceError,
    Error,
    GuardError,
    NonFiniteError,
    OutOfMemoryError,
    ReplayError,
    ScheduleError,
    UnsupportedError,
    UsageError,
)
from ._eager import EagerPart, eager
from ._finite_watch import FiniteWatch
from ._full_iteration import FullIteration
from ._grad_scaler import GradScaler
from ._graph import Graph
from ._graph_pool import GraphPool, GraphPoolFamily, graph_pool_handle
from ._graphed import GraphedFunction, graphed
from ._graphed_forward import GraphedForward
from ._internals import check_internals
from ._layers import GraphedLayers, graph_layers
from ._apply_config import apply_config
from ._memory import memory, memory_of_graphs, predict_buckets, predict_memory, watch_memory
from ._predict_scopes import predict_scopes
from ._profile import decide, profile
from ._rng_tracker import RngTracker
from ._try_scopes import Trial, TriedScopes, try_scopes
from ._static_inputs import Buckets, StaticInputs
from ._stream import Stream, current_stream, is_current_stream_capturing, stream
from ._verify import verify

_watch_process_groups()
_watch_resized_storages()

CudaGraphConfig = _C.CudaGraphConfig
resume_all = _C.resume_all
suspend_all = _C.suspend_all
GradPolicy = _C.GradPolicy
OutputPolicy = _C.OutputPolicy
ParallelOptions = _C.ParallelOptions
Schedule = _C.Schedule
check_config = _C.check_config
config_rules = _C.config_rules
load_config = _C.load_config
require_valid = _C.require_valid
with_environment = _C.with_environment
__version__ = _C.version()

__all__ = [
    "Buckets",
    "CUDAGraph",
    "CaptureError",
    "Checkpoint",
    "ConfigError",
    "CudaGraphConfig",
    "CommunicationError",
    "DeviceError",
    "Error",
    "FiniteWatch",
    "FullIteration",
    "GradPolicy",
    "GradScaler",
    "Graph",
    "EagerPart",
    "GraphPool",
    "GraphPoolFamily",
    "GraphedForward",
    "GraphedFunction",
    "GraphedLayers",
    "GuardError",
    "NonFiniteError",
    "OutOfMemoryError",
    "OutputPolicy",
    "ParallelOptions",
    "ReplayError",
    "RngTracker",
    "Schedule",
    "ScheduleError",
    "StaticInputs",
    "Trial",
    "TriedScopes",
    "Stream",
    "UnsupportedError",
    "UsageError",
    "apply_config",
    "audit",
    "check_config",
    "check_internals",
    "clip_grad_norm_",
    "clip_grad_value_",
    "clip_gradients_norm_",
    "compat",
    "config_rules",
    "current_stream",
    "decide",
    "default_device",
    "eager",
    "fp8",
    "graph",
    "graph_layers",
    "graph_pool_handle",
    "graphed",
    "is_current_stream_capturing",
    "load_config",
    "make_graphed_callables",
    "optim",
    "memory",
    "memory_of_graphs",
    "predict_buckets",
    "predict_memory",
    "predict_scopes",
    "watch_memory",
    "profile",
    "resume_all",
    "require_valid",
    "stream",
    "suspend_all",
    "try_scopes",
    "verify",
    "with_environment",
]

"""`pianola.CUDAGraph` and `pianola.graph`: torch.cuda's two, with the same arguments, methods and error texts."""

import os
import pathlib
import re
import threading
import warnings
from typing import Any, Optional, Union

import torch

from . import _recording
from ._device import Device, as_device
from ._errors import refuse
from ._graph import capture_options
from ._graph_hooks import HookedGraph
from ._graph_pool import pool_id
from ._load import _C
from ._stream import CPUStream, current_stream
from ._torch_abi import graph_data

_EMPTY = (
    "The CUDA Graph is empty. This usually means that the graph was attempted to be captured on wrong device or stream."
)
# In a label of Graphviz: all lines but the first.
_FURTHER_LINES = re.compile(r'(label="(?:[^"\\]|\\[^n])*)\\n(?:[^"\\]|\\.)*"')


class CUDAGraph(HookedGraph):
    """A graph that is captured between capture_begin() and capture_end(), as torch.cuda.CUDAGraph.

    On the CPU (`capture_begin(device="cpu")`, or where there is no GPU) it is the tape. Unlike torch's, a capture that
    fails leaves nothing behind, names the operation at fault, and the graph can capture again; tensors that the captured
    code wrote on the CPU are put back, because recording does not count as a run.

    It has the methods of the newest torch, whichever is installed, but for conditional nodes.

    Args:
        keep_graph: leave the executable to instantiate() or the first replay(), and the cudaGraph_t to raw_cuda_graph().
    """

    _default_mode = "thread_local"
    _allow_empty = False

    def __init__(self, keep_graph: bool = False) -> None:
        super().__init__()
        self._keep_graph = keep_graph
        self._generators: list[torch.Generator] = []
        self._debug = False
        self._graph: Optional[_C.Graph] = None
        self._scope: Optional[_C.CaptureScope] = None
        self._reads: Any = None
        self._thread = 0  # that captures
        self._ending = False  # between capture_end_pre() and capture_end_post()
        self._instantiated = False

    def capture_begin(
        self,
        pool: Any = None,
        capture_error_mode: Optional[str] = None,
        check_input_liveness: bool = False,
        *,
        device: Device = None,
        branches: Union[int, str] = 0,
        parallel: "Optional[_C.ParallelOptions]" = None,
    ) -> None:
        """Begins to capture what this thread runs on its current stream.

        Args:
            pool: memory to share with other graphs: what graph_pool_handle() or another graph's pool() returned.
            capture_error_mode: "thread_local" (default), "global" or "relaxed".
            check_input_liveness: each replay makes sure that the tensors from outside that it uses are still held by somebody
                and where they were; else a ReplayError names one. Off: the graph keeps them alive.
            device: where; default: the current CUDA device, or the CPU where there is none.
            branches, parallel: as for pianola.Graph.capture: what is independent runs at once.
        """
        device = as_device(device)
        stream = current_stream(device)
        if device.type == "cuda" and stream == torch.cuda.default_stream(device):
            refuse(
                "CUDA graphs must be captured on a non-default stream. (However, after capture, it's ok to replay them on "
                "the default stream.)",
                "use `with pianola.graph(g):`, or make another stream current: `with torch.cuda.stream(...)`",
            )
        self._begin(
            device, stream, pool, capture_error_mode, check_input_liveness, branches=branches, parallel=parallel
        )

    def _begin(
        self, device: torch.device, stream: Any, pool: Any, mode: Optional[str], strict: bool, **options: Any
    ) -> None:
        if self._graph is not None:
            refuse(
                "This CUDAGraph instance already owns a captured graph. To capture a new graph, create a new instance.",
                "or call reset() first",
            )
        self._graph = graph = _C.Graph(device)  # ahead of the capture: no other thread may begin one beside it
        try:
            self._open(graph, device, stream, pool, mode, check="strict" if strict else "standard", **options)
            self._at_capture_start.run(self)
        except BaseException:
            self._drop()
            raise

    def _open(
        self, graph: "_C.Graph", device: torch.device, stream: Any, pool: Any, mode: Optional[str], **options: Any
    ) -> None:
        captured_with = capture_options(
            device,
            pool=pool,
            generators=self._generators,
            capture_error_mode=mode or self._default_mode,
            instantiate=not self._keep_graph,
            allow_empty=self._allow_empty,
            stream=stream,
            **options,
        )
        self._scope = _C.CaptureScope(graph, captured_with)
        self._thread = threading.get_ident()
        self._reads = _recording.scope(device)
        self._reads.__enter__()

    def capture_end(self) -> None:
        """Ends the capture, on the thread that began it; afterwards replay() runs what was captured."""
        self.capture_end_pre()
        try:
            if self._at_capture_end:
                self._at_capture_end.run(self)
                self._instantiated = False  # a hook may have changed the graph
            if self._instantiated:
                self._at_instantiate.run(self)
            elif not self._keep_graph:
                self.instantiate()
            self.capture_end_post()
        except BaseException:
            self._drop()
            raise

    def capture_end_pre(self) -> None:
        """The first half of capture_end(), without hooks: until capture_end_post(), raw_cuda_graph() gives the graph, which may
        be changed, and instantiate() makes the executable once more, with and without `keep_graph`."""
        scope = self._take_scope("capture_end()")
        try:
            scope.end()
        except BaseException:
            self._graph = None
            raise
        self._ending, self._instantiated = True, not self._keep_graph
        if self._allow_empty and any("empty" in warning for warning in self._captured().info().warnings):
            warnings.warn(_EMPTY, stacklevel=3)

    def capture_end_post(self) -> None:
        """The second half of capture_end()."""
        if not self._ending:
            refuse("capture_end_post() called before capture_end_pre().", "call capture_end(), which does both")
        self._ending = False

    def _fail(self, error: BaseException) -> None:
        """Abandons the capture after an exception in it; raises an explanation where capturing is what caused it."""
        scope = self._take_scope("capture_end()")
        self._graph = None
        if isinstance(error, RuntimeError) and not isinstance(error, _C.Error):
            scope.fail(error)

    def _take_scope(self, call: str) -> "_C.CaptureScope":
        scope = self._scope
        if scope is None:
            refuse("capture_end() called before capture_begin().")
        if self._thread != threading.get_ident():
            refuse(
                f"{call} was called on another thread than capture_begin(); the capture continues",
                "begin and end a capture on one thread",
            )
        self._scope = None
        self._reads.__exit__(None, None, None)
        return scope

    def _captured(self, otherwise: str = "Called CUDAGraph::replay without a preceding successful capture.") -> "_C.Graph":
        if self._graph is None or not self._graph.captured:
            refuse(otherwise)
        return self._graph

    def replay(self) -> None:
        """Runs what was captured, on the current stream."""
        graph = self._graph
        if graph is None or self._scope is not None:
            graph = self._captured()
        if not self._instantiated:
            self.instantiate()
        if self._kept.streams is not None:
            self._kept.streams.add(current_stream(graph.device))
        start, end = self._at_replay_start, self._at_replay_end
        if not (start.own or start.of_all or end.own or end.of_all):  # bool(start) takes longer, and each replay asks
            return graph.replay()
        start.run(self)
        try:
            graph.replay()
        finally:
            end.run(self)

    def instantiate(self) -> None:
        """Makes the executable from the captured graph as it is now. For keep_graph=True."""
        if not (self._keep_graph or self._ending):
            refuse("instantiate() is intended to be called by the user only when keep_graph=true")
        self._captured("capture_end() must have been called before calling instantiate").instantiate()
        self._instantiated = True
        self._at_instantiate.run(self)

    def reset(self) -> None:
        """Drops the graph and its memory, or abandons the capture that is open; the object can capture again."""
        self._close_scope()
        self._release_kept()
        self._drop()

    def _close_scope(self) -> None:
        if self._scope is not None:
            self._take_scope("reset()")

    def _drop(self) -> None:
        self._close_scope()
        self._graph = None
        self._ending = self._instantiated = False

    def pool(self) -> tuple[int, int]:
        """The name of the graph's memory pool, to pass to another graph."""
        return self._captured("Called CUDAGraph::pool() without a preceding successful capture.").pool_id()

    def pools(self) -> list[tuple[int, int]]:
        """The names of all memory pools that the graph keeps: its own."""
        return [self._captured("Called CUDAGraph::pools() without a preceding successful capture.").pool_id()]

    def register_generator_state(self, generator: torch.Generator) -> None:
        """Lets the captured code draw from `generator`; before capture_begin(). The default one always may."""
        self._generators.append(generator)

    def info(self) -> "_C.GraphInfo":
        """What the graph holds and what making it cost."""
        return self._captured("info() was called on a CUDAGraph that holds no capture.").info()

    def enable_debug_mode(self) -> None:
        """Lets debug_dump() write. As in torch, call it before the capture."""
        self._debug = True

    def debug_dump(self, debug_path: "Union[str, os.PathLike[str]]", *, verbose: bool = True) -> None:
        """Writes the graph in Graphviz's language: nodes with kernel and operation, edges. Without `verbose` a node is its type
        and kernel alone. For graphs with `keep_graph` or enable_debug_mode(), and in hooks at the end of a capture."""
        if not (self._debug or self._keep_graph or self._ending):
            warnings.warn("CUDA Graphs debug not enabled, set with [graph].enable_debug_mode()", stacklevel=2)
            return
        path = os.fspath(debug_path)
        self._captured("debug_dump() was called on a CUDAGraph that holds no capture.").dump_dot(path)
        if not verbose:
            text = pathlib.Path(path).read_text()
            pathlib.Path(path).write_text(_FURTHER_LINES.sub(r'\1"', text))

    def get_graph_data(self) -> dict[str, Any]:
        """Nodes and edges with the numbers by which CUPTI calls them, as torch from 2.14 on tells them, for profilers. Needs
        `keep_graph`, the package cuda-bindings and a driver of CUDA 13.1 or newer."""
        if self._captured("get_graph_data() was called on a CUDAGraph that holds no capture.").device.type != "cuda":
            refuse("get_graph_data() tells of nodes of CUDA, and the tape has none", "see info() and debug_dump()")
        data = graph_data(self)
        if data is None:
            refuse(f"torch {torch.__version__} has no get_graph_data()", "see info() and debug_dump(), or install torch 2.14")
        return data

    def dump_lanes(self, file: "Union[str, os.PathLike[str]]") -> None:
        """Draws the lanes of `branches` as an SVG picture: what runs beside what, by modelled times."""
        self._captured("dump_lanes() was called on a CUDAGraph that holds no capture.").dump_lanes(os.fspath(file))

    def raw_cuda_graph(self) -> int:
        """The cudaGraph_t, for cuda-python; 0 on the tape. For graphs with `keep_graph` or enable_debug_mode(), and in hooks at
        the end of a capture."""
        if not (self._keep_graph or self._debug or self._ending):
            refuse(
                "You cannot access the raw cudaGraph_t instance unless CUDAGraph was initialized with keep_graph=true"
            )
        return self._captured(
            "You cannot access the raw cudaGraph_t instance until capture_end() has been called"
        ).raw_graph()

    def raw_cuda_graph_exec(self) -> int:
        """The cudaGraphExec_t, for cuda-python; 0 on the tape. Valid until instantiate() or reset()."""
        graph = self._captured("You cannot access the raw cudaGraphExec_t instance until instantiate() has been called")
        executable = graph.raw_executable()
        if executable == 0 and graph.device.type == "cuda":
            refuse("You cannot access the raw cudaGraphExec_t instance until instantiate() has been called")
        return executable


class graph:  # noqa: N801  named as torch.cuda.graph
    """A context that captures the code in it, as torch.cuda.graph.

        g = pianola.CUDAGraph()
        with pianola.graph(g):
            y = model(x)
        g.replay()

    If the code raises, the capture is undone and the exception comes out. A torch error that the capture caused comes out as
    CaptureError, with the operation and the line.

    Args:
        cuda_graph: the CUDAGraph to fill.
        pool: memory to share: what graph_pool_handle() or another graph's pool() returned.
        stream: to capture on; default: one of Pianola's. On the CPU there is none.
        capture_error_mode: "thread_local" (default), "global" or "relaxed".
        device: where; default: the stream's, else the current CUDA device, or the CPU where there is none.
        check_input_liveness: as for CUDAGraph.capture_begin().
        branches, parallel: as for pianola.Graph.capture: what is independent runs at once.
    """

    default_capture_stream = None

    def __init__(
        self,
        cuda_graph: CUDAGraph,
        pool: Any = None,
        stream: Any = None,
        capture_error_mode: Optional[str] = None,
        *,
        device: Device = None,
        check_input_liveness: bool = False,
        branches: Union[int, str] = 0,
        parallel: "Optional[_C.ParallelOptions]" = None,
    ) -> None:
        if not isinstance(cuda_graph, CUDAGraph):
            refuse(
                f"pianola.graph was given a {type(cuda_graph).__module__}.{type(cuda_graph).__qualname__}, which it cannot fill",
                "pass a pianola.CUDAGraph; what torch.cuda.CUDAGraph made is for torch.cuda.graph",
            )
        self.cuda_graph = cuda_graph
        self.pool = pool_id(pool)
        self.capture_stream = stream
        self.capture_error_mode = capture_error_mode
        self.check_input_liveness = check_input_liveness
        self.device = as_device(stream.device if device is None and stream is not None else device)
        self.branches = branches
        self.parallel = parallel

    def __enter__(self) -> None:
        stream = None if isinstance(self.capture_stream, CPUStream) else self.capture_stream
        self.cuda_graph._begin(
            self.device,
            stream,
            self.pool,
            self.capture_error_mode,
            self.check_input_liveness,
            branches=self.branches,
            parallel=self.parallel,
        )

    def __exit__(self, kind: Any, error: Optional[BaseException], traceback: Any) -> None:
        if error is None:
            self.cuda_graph.capture_end()
        else:
            self.cuda_graph._fail(error)

"""`pianola.compat()`: Pianola behind torch.cuda's own names, for code that cannot be changed.

The names and arguments are those of the newest torch that was looked at; python/tests/dropin_names_test.py has what was decided
about each, and fails where the installed torch has another one.
"""

import contextlib
import sys
from typing import Any, Callable, Iterator, NoReturn, Optional

import torch

from . import _transformer_engine
from ._callables import make_graphed_callables
from ._cuda_graph import CUDAGraph, graph
from ._errors import refuse
from ._torch_abi import in_torchs_order, records_annotations

_TORCHS_GRAPH = torch.cuda.CUDAGraph
_torchs_capture = torch.cuda.graph
_torchs_export = getattr(torch.cuda.graphs, "export_dot", None)

# torch.compile(mode="reduce-overhead") and the `cudagraphs` backend capture with the names that users have, and then ask
# torch's allocator what their own capture did. They look the names up when they run, so that the caller decides, not the
# module in which a name stands. Triton times kernels in captures, for torch.
_WITH_GRAPHS_OF_THEIR_OWN = ("torch", "triton")


def _is_torchs_own(module: str) -> bool:
    return module.partition(".")[0] in _WITH_GRAPHS_OF_THEIR_OWN


class TorchCUDAGraph(CUDAGraph):
    """With torch's ways where they differ: unsafe calls of any thread break a capture, an empty capture is a warning.

    Torch's own code gets torch's own class. All methods are there, whichever torch is installed.
    """

    _default_mode = "global"
    _allow_empty = True

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls is TorchCUDAGraph and _is_torchs_own(sys._getframe(1).f_globals.get("__name__", "")):
            return _TORCHS_GRAPH(*args, **kwargs)
        return super().__new__(cls)

    @staticmethod
    def get_currently_capturing_graph() -> Any:
        """Torch's answer, for torch's own code: its view of the capture that is under way, not a graph of this class."""
        return _TORCHS_GRAPH.get_currently_capturing_graph()  # type: ignore[attr-defined]

    def begin_capture_to_if_node(self, *arguments: Any) -> NoReturn:
        """Refused, as the three others of conditional nodes are."""
        refuse(
            "Pianola's graphs hold no conditional nodes",
            "compute both sides and choose by torch.where; or capture this graph outside of pianola.compat()",
        )

    begin_capture_to_while_node = end_capture_to_conditional_node = begin_capture_to_if_node
    set_conditional_handle_for_current_node = begin_capture_to_if_node


# Of an annotation_config: with these torch raises an error where it cannot record; else it says nothing.
_INSISTS = {"backend": "cupti", "key_by": "source", "record_py_stacks": True}


def _check_annotations(wanted: bool, config: Optional[dict[str, Any]] = None) -> None:
    """They are keyed by the nodes of torch's executable. Where torch would record none and say nothing, neither do we."""
    insists = any((config or {}).get(key) == value for key, value in _INSISTS.items())
    if wanted and (insists or records_annotations()):
        refuse(
            "enable_annotations: Pianola does not record torch's annotations of kernels",
            "leave it out, as debug_dump() names each node's operation; or capture this graph outside of pianola.compat()",
        )


class TorchGraph(graph):
    """pianola.graph; for a graph that is torch's, as one from before compat() is, torch's own context."""

    def __new__(cls, cuda_graph: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(cuda_graph, _TORCHS_GRAPH):
            return _torchs_capture(cuda_graph, *args, **kwargs)
        return super().__new__(cls)

    @in_torchs_order(_torchs_capture.__init__)
    def __init__(
        self,
        cuda_graph: Any,
        pool: Any = None,
        stream: Any = None,
        capture_error_mode: Optional[str] = None,
        enable_annotations: bool = False,
        annotation_config: Optional[dict[str, Any]] = None,
        check_input_liveness: bool = False,
        **options: Any,
    ) -> None:
        _check_annotations(enable_annotations, annotation_config)
        super().__init__(
            cuda_graph, pool, stream, capture_error_mode, check_input_liveness=check_input_liveness, **options
        )


@in_torchs_order(torch.cuda.make_graphed_callables)
def torch_make_graphed_callables(
    callables: Any,
    sample_args: Any,
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    pool: Any = None,
    capture_error_mode: str = "global",
    enable_annotations: bool = False,
) -> Any:
    """With torch's ways where they differ: gradients reach parameters through autograd, autocast's cache is refused, a call
    that differs from the sample runs, though eagerly, and what a callable does under capture is taken for what it does."""
    if torch.is_autocast_enabled() and torch.is_autocast_cache_enabled():
        refuse("make_graphed_callables does not support the autocast caching. Please set `cache_enabled=False`.")
    _check_annotations(enable_annotations)
    return make_graphed_callables(
        callables, sample_args, num_warmup_iters, allow_unused_input, pool, capture_error_mode, grad="clone",
        on_mismatch="eager", accept_capture_path=True
    )


def torch_export_dot(path: str, *, verbose: bool = True) -> Callable[[Any], None]:
    """A hook for the end of a capture that writes the graph. For Pianola's graphs it needs no package cuda-bindings."""
    assert _torchs_export is not None  # the name is torch's
    of_torch = _torchs_export(path, verbose=verbose)

    def write(graph: Any) -> None:
        if isinstance(graph, CUDAGraph):
            graph.debug_dump(path, verbose=verbose)
        else:
            of_torch(graph)

    return write


_REPLACED: dict[str, Any] = {
    "CUDAGraph": TorchCUDAGraph,
    "graph": TorchGraph,
    "make_graphed_callables": torch_make_graphed_callables,
    "export_dot": torch_export_dot,
}


_REPLACED_OF_TRANSFORMER_ENGINE: dict[str, Any] = {
    "make_graphed_callables": _transformer_engine.te_make_graphed_callables,
}


@contextlib.contextmanager
def compat() -> Iterator[None]:
    """A context in which torch.cuda.CUDAGraph, torch.cuda.graph and torch.cuda.make_graphed_callables are Pianola's.

    Graphs that were made inside keep working outside. Names that a module has imported before (`from torch.cuda import
    graph`) stay torch's, and so do graphs that were made before. torch uses its own classes for what it captures itself, as
    torch.compile(mode="reduce-overhead") does. The context holds for the whole process, not for one thread.

    Where transformer_engine.pytorch has been imported before, its make_graphed_callables is Pianola's, too, with its arguments; those
    for FP8 are for layers that `pianola.fp8.convert` made.

    Methods and arguments are torch 2.15's, whichever torch is installed. Functions of the module (`export_dot`,
    `register_graph_replay_start_hook`) are there where torch has them, and serve Pianola's graphs too. Conditional nodes are
    refused, and so is `enable_annotations` where torch would record annotations.
    """
    names = {torch.cuda: _REPLACED, torch.cuda.graphs: _REPLACED}
    names |= {sys.modules[one]: _REPLACED_OF_TRANSFORMER_ENGINE for one in _transformer_engine.MODULES if one in sys.modules}
    before = [
        (module, name, getattr(module, name)) for module, ours in names.items() for name in ours if hasattr(module, name)
    ]
    for module, name, _ in before:
        setattr(module, name, names[module][name])
    try:
        yield
    finally:
        for module, name, original in before:
            setattr(module, name, original)

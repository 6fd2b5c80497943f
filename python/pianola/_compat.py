"""`pianola.compat()`: Pianola behind torch.cuda's own names, for code that cannot be changed."""

import contextlib
import sys
from typing import Any, Iterator

import torch

from ._callables import make_graphed_callables
from ._cuda_graph import CUDAGraph, graph
from ._errors import refuse

_TORCHS_GRAPH = torch.cuda.CUDAGraph
_torchs_capture = torch.cuda.graph

# torch.compile(mode="reduce-overhead") and the `cudagraphs` backend capture with the names that users have, and then ask
# torch's allocator what their own capture did. They look the names up when they run, so that the caller decides, not the
# module in which a name stands. Triton times kernels in captures, for torch.
_WITH_GRAPHS_OF_THEIR_OWN = ("torch", "triton")


def _is_torchs_own(module: str) -> bool:
    return module.partition(".")[0] in _WITH_GRAPHS_OF_THEIR_OWN


class TorchCUDAGraph(CUDAGraph):
    """With torch's ways where they differ: unsafe calls of any thread break a capture, an empty capture is a warning.

    Torch's own code gets torch's own class.
    """

    _default_mode = "global"
    _allow_empty = True

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls is TorchCUDAGraph and _is_torchs_own(sys._getframe(1).f_globals.get("__name__", "")):
            return _TORCHS_GRAPH(*args, **kwargs)
        return super().__new__(cls)


class TorchGraph(graph):
    """pianola.graph; for a graph that is torch's, as one from before compat() is, torch's own context."""

    def __new__(cls, cuda_graph: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(cuda_graph, _TORCHS_GRAPH):
            return _torchs_capture(cuda_graph, *args, **kwargs)
        return super().__new__(cls)


def torch_make_graphed_callables(
    callables: Any,
    sample_args: Any,
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    pool: Any = None,
) -> Any:
    """With torch's ways where they differ: gradients reach parameters through autograd, autocast's cache is refused, a call
    that differs from the sample runs, though eagerly, and what a callable does under capture is taken for what it does."""
    if torch.is_autocast_enabled() and torch.is_autocast_cache_enabled():
        refuse("make_graphed_callables does not support the autocast caching. Please set `cache_enabled=False`.")
    return make_graphed_callables(
        callables, sample_args, num_warmup_iters, allow_unused_input, pool, capture_error_mode="global", grad="clone",
        on_mismatch="eager", accept_capture_path=True
    )


_REPLACED: dict[str, Any] = {
    "CUDAGraph": TorchCUDAGraph,
    "graph": TorchGraph,
    "make_graphed_callables": torch_make_graphed_callables,
}


@contextlib.contextmanager
def compat() -> Iterator[None]:
    """A context in which torch.cuda.CUDAGraph, torch.cuda.graph and torch.cuda.make_graphed_callables are Pianola's.

    Graphs that were made inside keep working outside. Names that a module has imported before (`from torch.cuda import
    graph`) stay torch's, and so do graphs that were made before. torch uses its own classes for what it captures itself, as
    torch.compile(mode="reduce-overhead") does. The context holds for the whole process, not for one thread.
    """
    modules = (torch.cuda, torch.cuda.graphs)
    before = [(module, name, getattr(module, name)) for module in modules for name in _REPLACED]
    for module, name, _ in before:
        setattr(module, name, _REPLACED[name])
    try:
        yield
    finally:
        for module, name, original in before:
            setattr(module, name, original)

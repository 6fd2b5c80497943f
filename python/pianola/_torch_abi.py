"""What differs between versions of torch, for the Python package. The library's part is the room pianola/torch_abi."""

import functools
import importlib
import importlib.util
import inspect
import types
from typing import Any, Callable, Mapping, Optional

import torch
import torch.utils.checkpoint
from torch.utils.hooks import BackwardHook

_TorchsGraph = torch.cuda.CUDAGraph  # also while compat() has another one in its place


def code_of(function: Any) -> Optional[types.CodeType]:
    """None where it is C's in this torch: no frame of Python's tells of it."""
    return getattr(getattr(function, "__func__", function), "__code__", None)


# A function of Python's in torch 2.11, C's in 2.15.
CODE_OF_APPLY = code_of(torch.autograd.Function.apply)


def function_of_apply(method: Any) -> Optional[type]:
    """The custom Function whose apply() it is, where that is C's."""
    owner = getattr(method, "__self__", None)
    is_apply = isinstance(method, types.BuiltinFunctionType) and method.__name__ == "apply"
    return owner if is_apply and isinstance(owner, type) and issubclass(owner, torch.autograd.Function) else None


def is_of_a_checkpoint(one: Any) -> bool:
    """Whether it is the frame of a checkpoint(use_reentrant=False), or a hook around that: each call makes its own."""
    if isinstance(one, types.FunctionType):
        return one.__module__ == "torch.utils.checkpoint" and one.__qualname__.startswith("_checkpoint_hook.")
    return isinstance(one, getattr(torch.utils.checkpoint, "_CheckpointFrame", ()))


def next_node() -> int:
    """The number that autograd gives the next node that this thread makes."""
    return torch._C._autograd._get_sequence_nr()


def is_of_a_backward(one: Any, began: int) -> bool:
    """Whether it is the `ctx` of an autograd function that was applied since, or what a module with hooks on backward passes makes in each
    forward: the history of the results holds either.

    Args:
        began: next_node() then, on this thread.
    """
    if isinstance(one, BackwardHook):
        return True
    try:
        return isinstance(one, torch.autograd.function.BackwardCFunction) and one._sequence_nr() >= began
    except RuntimeError:  # its node is gone
        return False


def in_torchs_order(torchs: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """For a function that stands for torch's: arguments without a name are those that the installed torch has in their places.

    torch 2.15 has put graph(annotation_config) in front of check_input_liveness, for one.
    """
    parameters = inspect.signature(torchs)

    def decorate(ours: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(ours)
        def call(*arguments: Any, **named: Any) -> Any:
            return ours(**parameters.bind_partial(*arguments).arguments, **named)

        return call

    return decorate


def hooks_of_all_graphs(moment: str) -> Mapping[int, Callable[..., None]]:
    """What torch.cuda.graphs.register_graph_<moment>_hook() was given and will be, by number. Torch has it from 2.14 on."""
    return getattr(torch.cuda.graphs, f"_global_{moment}_hooks", {})


def records_annotations() -> bool:
    """Whether graph(enable_annotations=True) of torch's would record any here: with an older driver (before 13.1) or without
    cuda-bindings torch takes the option and does nothing."""
    if importlib.util.find_spec("torch.cuda._graph_annotations") is None or not torch.cuda.is_available():
        return False
    annotations = importlib.import_module("torch.cuda._graph_annotations")
    return not getattr(annotations, "_is_tools_id_unavailable", lambda: False)()


def graph_data(graph: Any) -> Optional[dict[str, Any]]:
    """CUDAGraph.get_graph_data() of torch's, for anything that has raw_cuda_graph() and raw_cuda_graph_exec().

    None: a torch before 2.14 has no such method.
    """
    read = getattr(_TorchsGraph, "get_graph_data", None)
    if read is None:
        return None
    handles = types.SimpleNamespace(
        raw_cuda_graph=graph.raw_cuda_graph,
        raw_cuda_graph_exec=graph.raw_cuda_graph_exec,
        _instantiate_graph_data=None,  # torch's hooks share what the first of them has read
        _caching_graph_data=False,
    )
    return read(handles)


def let_graphs_retain_pools() -> None:
    """torch.cuda.use_mem_pool() in a capture has the graph that captures keep the pool, from torch 2.14 on. It expects a graph of
    Python's; one of the library's is C++'s, whose method takes the number of the pool alone."""
    of_cpp: Any = getattr(torch._C, "_CUDAGraph", None)
    retain = getattr(of_cpp, "_retain_pool", None)
    if retain is not None:
        of_cpp._retain_pool = lambda graph, pool: retain(graph, getattr(pool, "id", pool))

"""Megatron-LM's full iterations as graphs, under its names:

    from megatron.core.pipeline_parallel import get_forward_backward_func
    from pianola.integrations.megatron import FullCudaGraphWrapper

    forward_backward_func = FullCudaGraphWrapper(get_forward_backward_func(), cuda_graph_warmup_steps=1)
    ...
    losses = forward_backward_func(forward_step_func=..., data_iterator=..., model=..., num_microbatches=..., ...)

The training loop stays as it is: gradients are zeroed before, and the optimizer steps behind it. It wraps any function of that signature,
and imports nothing of Megatron's.
"""

from typing import TYPE_CHECKING, Any, Callable, Optional, Union

from .._errors import refuse
from .._graphed import GraphedFunction, graphed

if TYPE_CHECKING:
    from .._options import GraphedOptions, Unpack

__all__ = ["FullCudaGraphWrapper"]

_STAGES = ("training", "validation")


class FullCudaGraphWrapper:
    """A forward_backward_func whose calls are replayed: forward and backward passes over all microbatches are one graph, training and
    validation (`forward_only`) one each.

    The batches of a call are read before it, as many as there are microbatches, from each of the data iterators of its chunks, and are the
    graph's inputs. A call with another number of microbatches, other shapes, or another model gets a graph of its own. What no graph could
    repeat runs eagerly, and the reason is logged once, as with `pianola.graphed`; `info()` tells.

    Args:
        forward_backward_func: is called with keywords alone.
        cuda_graph_warmup_steps: eager calls of each kind before the capture, at least 1.
        options: as for `pianola.graphed`.
    """

    def __init__(
        self, forward_backward_func: Callable[..., Any], cuda_graph_warmup_steps: int = 1, **options: "Unpack[GraphedOptions]"
    ) -> None:
        if not callable(forward_backward_func):
            refuse(
                f"FullCudaGraphWrapper was given {type(forward_backward_func).__name__}, which cannot be called",
                "give it what get_forward_backward_func() returns",
            )
        self.forward_backward_func = forward_backward_func
        own: Any = {"warmup": cuda_graph_warmup_steps, **options}
        self._stages: dict[str, GraphedFunction] = {stage: graphed(self._function_of(stage), **own) for stage in _STAGES}

    def _function_of(self, stage: str) -> Callable[..., Any]:
        function = self.forward_backward_func

        def step(chunks: Any, keywords: dict[str, Any]) -> Any:
            return function(data_iterator=_iterators(chunks), **keywords)

        step.__name__ = step.__qualname__ = f"{getattr(function, '__name__', type(function).__name__)}, {stage}"
        return step

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        missing = [name for name in ("data_iterator", "model", "num_microbatches") if name not in keywords]
        if args or missing:
            what = "positional arguments" if args else f"no {missing[0]}"
            refuse(f"the forward_backward_func was given {what}", "call it with keywords, as Megatron does")
        stage = "validation" if keywords.get("forward_only", False) else "training"
        chunks = _batches(keywords.pop("data_iterator"), keywords["num_microbatches"])
        return self._stages[stage](chunks, keywords)

    def info(self, stage: str = "training") -> Any:
        """What is captured, and why calls run eagerly: pianola.GraphedInfo."""
        return self._stages[_known(stage)].info()

    def reset_cuda_graph(self, stage: Optional[str] = None) -> None:
        """Drops the graphs of a stage, or of both; the next calls warm up and capture anew."""
        for one in _STAGES if stage is None else (_known(stage),):
            self._stages[one].reset()


def _known(stage: str) -> str:
    if stage not in _STAGES:
        refuse(f"there is no stage {stage!r}", 'name "training" or "validation"')
    return stage


def _batches(iterators: Any, microbatches: int) -> Union[list[Any], tuple[Any, ...], None]:
    """Of an iterator: a tuple of its next batches; of a list of iterators: a list of those. None where there is no iterator."""
    if isinstance(iterators, list):
        return [_batches(one, microbatches) for one in iterators]
    return None if iterators is None else tuple([next(iterators) for _ in range(microbatches)])


def _iterators(chunks: Any) -> Any:
    """Those that give the batches again."""
    if isinstance(chunks, list):
        return [_iterators(one) for one in chunks]
    return None if chunks is None else iter(chunks)

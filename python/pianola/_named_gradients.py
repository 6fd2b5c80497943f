"""Gradients that a program asks for by name: `torch.autograd.grad(loss, parameters)`, `loss.backward(inputs=parameters)`.

The backward graphs of graphed callables add gradients of parameters themselves, past autograd, which would not find these
parameters. They are shown to it when somebody names tensors, and only then: all other backward passes take the time that
they took.
"""

import functools
from typing import Any, Iterator, Sequence

import torch

from ._load import _C


_passes = [0]


def backward_passes() -> int:
    """How many have begun in this process since see_names()."""
    return _passes[0]


def _tensors(inputs: Sequence[Any]) -> Iterator[torch.Tensor]:
    for one in inputs:
        if isinstance(one, torch.autograd.graph.GradientEdge):
            one = getattr(one.node, "variable", None)  # of a leaf
        if isinstance(one, torch.Tensor) and one.is_leaf:
            yield one


@functools.lru_cache(maxsize=None)
def see_names() -> None:
    """From now on. torch.autograd.backward and torch.autograd.grad, by whatever name they are called, come through here."""
    run = torch.autograd._engine_run_backward  # type: ignore[attr-defined]

    @functools.wraps(run)
    def engine_run_backward(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
        _passes[0] += 1
        inputs = kwargs.get("inputs", args[3] if len(args) > 3 else ())
        if inputs:
            _C.expose_to_autograd(list(_tensors(inputs)))
        return run(t_outputs, *args, **kwargs)

    torch.autograd._engine_run_backward = engine_run_backward  # type: ignore[attr-defined]

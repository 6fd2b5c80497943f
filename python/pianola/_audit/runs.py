"""Calls the step: frames of this file are where the step's own begin."""

import contextlib
from typing import Any, ContextManager, Iterator

import torch
from torch.utils.checkpoint import set_checkpoint_early_stop

from .target import Target, gradients_wanted


def call(target: Target, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Runs the step once; a module's backward pass too, where it trains."""
    # A recomputation that stops early leaves its last operation by an exception: its result would come from nowhere.
    with set_checkpoint_early_stop(False):
        result = target.step(*args, **kwargs)
        wanted = gradients_wanted(target.module, result) if target.module is not None else []
        if wanted:
            torch.autograd.backward(wanted, [torch.ones_like(tensor) for tensor in wanted])
    return result


class OwnStream:
    """Where the runs go: on CUDA a stream of their own, as a capture has, ordered with the caller's."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def __call__(self) -> ContextManager[Any]:
        return contextlib.nullcontext() if self._stream is None else self._ordered(self._stream)

    @contextlib.contextmanager
    def _ordered(self, stream: "torch.cuda.Stream") -> Iterator[None]:
        current = torch.cuda.current_stream(self._device)
        stream.wait_stream(current)
        try:
            with torch.cuda.stream(stream):
                yield
        finally:
            current.wait_stream(stream)

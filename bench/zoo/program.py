"""What a case of the zoo builds: somebody's program, with the loop around its step."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch


@dataclasses.dataclass
class Program:
    """`build(device, size, graphed)` of a case makes it; `graphed` decorates the step, and nothing else differs from eager."""

    loop: Callable[[], Iterator[Any]]  # the user's loop: each turn calls the step once and yields what the user then has
    state: tuple  # what the step changes: modules, optimizers, schedulers, scalers, tensors, lists
    model: torch.nn.Module | None = None  # what torch.cuda.make_graphed_callables and torch.compile are given


class Size:
    """`size(small, full)`: small ones run on a CPU in seconds."""

    def __init__(self, full):
        self.full = full

    def __call__(self, small, full):
        return full if self.full else small


def forever(batches):
    """Epochs over a loader, each batch in new memory, as a loader's are."""
    while True:
        for batch in batches:
            yield tuple(part.clone() if isinstance(part, torch.Tensor) else part for part in batch)


def images(batch, side, classes, device="cpu", count=4, channels=3):
    """Batches of (images, labels)."""
    return [(torch.randn(batch, channels, side, side).to(device), torch.randint(classes, (batch,)).to(device))
            for _ in range(count)]


def words(batch, length, vocabulary, device="cpu", count=4):
    """Batches of (tokens,)."""
    return [(torch.randint(vocabulary, (batch, length)).to(device),) for _ in range(count)]

"""The rows of the table: the ways to train a model with graphs, of torch and of Pianola."""

import dataclasses
from typing import Callable, Literal, Sequence

import torch
from torch import nn

from pianola import FullIteration, make_graphed_callables

from .workloads import Batch, Training

Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Scope = Literal["eager", "iteration", "model", "submodules"]
Owner = Literal["none", "torch", "pianola"]

SCOPES: dict[Scope, str] = {
    "eager": "no graph",
    "iteration": "forward + loss + backward + optimizer",
    "model": "forward, backward of the model",
    "submodules": "forward, backward of each submodule",
}
_SHORT: dict[Scope, str] = {"iteration": "whole iteration", "model": "whole model", "submodules": "per submodule"}
WARMUP = 3  # iterations, which count, in front of a capture


@dataclasses.dataclass(frozen=True)
class Prepared:
    step: Step
    is_replayed: Callable[[], bool] = lambda: True  # false: steps went through no graph, and their times are eager's


@dataclasses.dataclass(frozen=True)
class Contender:
    scope: Scope
    owner: Owner
    api: str  # what one writes
    prepare: Callable[[Training, Sequence[Batch]], Prepared]  # trains on these batches, the first WARMUP ones

    @property
    def key(self) -> str:
        """In the names of files."""
        return self.scope if self.owner == "none" else f"{self.scope}_{self.owner}"

    @property
    def words(self) -> str:
        """As one name."""
        return SCOPES[self.scope] if self.owner == "none" else f"{self.api}, {_SHORT[self.scope]}"


def contenders(device: torch.device) -> list[Contender]:
    """Those that can run there: torch's graphs need a GPU."""
    return [one for one in _CONTENDERS if device.type == "cuda" or one.owner != "torch"]


def _eager(training: Training, batches: Sequence[Batch]) -> Prepared:
    _train(training.step, batches)
    return Prepared(training.step)


def _iteration_by_torch(training: Training, batches: Sequence[Batch]) -> Prepared:
    """As torch's documentation has it: warmed up on a side stream, replayed on inputs that are copied to fixed places."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        _train(training.step, batches)
    torch.cuda.current_stream().wait_stream(side)
    static_x, static_target = (tensor.clone() for tensor in batches[0])
    training.optimizer.zero_grad(set_to_none=True)  # the graph makes gradients of its own
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = training.step(static_x, static_target)

    def step(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        static_x.copy_(x)
        static_target.copy_(target)
        graph.replay()
        return loss

    return Prepared(step)


def _iteration_by_pianola(training: Training, batches: Sequence[Batch]) -> Prepared:
    iteration = FullIteration(training.iteration, warmup=WARMUP)

    def step(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = iteration([(x, target)])
        return loss

    def is_replayed() -> bool:
        known = iteration.info().signatures
        return len(known) == 1 and known[0].eager_calls == WARMUP and known[0].replays > 0

    _train(step, batches)
    return Prepared(step, is_replayed)


def _model_by_torch(training: Training, batches: Sequence[Batch]) -> Prepared:
    torch.cuda.make_graphed_callables(training.model, _samples([training.model], batches)[0])
    return _eager(training, batches)


def _model_by_pianola(training: Training, batches: Sequence[Batch]) -> Prepared:
    make_graphed_callables(training.model, _samples([training.model], batches)[0])
    return _eager(training, batches)


def _submodules_by_torch(training: Training, batches: Sequence[Batch]) -> Prepared:
    layers = tuple(training.model)
    torch.cuda.make_graphed_callables(layers, _samples(layers, batches))
    return _eager(training, batches)


def _submodules_by_pianola(training: Training, batches: Sequence[Batch]) -> Prepared:
    layers = tuple(training.model)
    make_graphed_callables(layers, _samples(layers, batches))
    return _eager(training, batches)


def _samples(layers: Sequence[nn.Module], batches: Sequence[Batch]) -> tuple[tuple[torch.Tensor], ...]:
    """The input of each layer; all but the first one's are results of another, so that a gradient passes through them.

    Copies, because torch's callables copy no input that is the sample itself.
    """
    x = batches[0][0]
    samples: list[tuple[torch.Tensor]] = []
    with torch.no_grad():
        for layer in layers:
            samples.append((x.clone().requires_grad_(bool(samples)),))
            x = layer(x)
    return tuple(samples)


def _train(step: Step, batches: Sequence[Batch]) -> None:
    for i in range(WARMUP):
        step(*batches[i % len(batches)])


_CONTENDERS = (
    Contender("eager", "none", "-", _eager),
    Contender("iteration", "torch", "torch.cuda.graph", _iteration_by_torch),
    Contender("iteration", "pianola", "pianola.FullIteration", _iteration_by_pianola),
    Contender("model", "torch", "torch.cuda.make_graphed_callables", _model_by_torch),
    Contender("model", "pianola", "pianola.make_graphed_callables", _model_by_pianola),
    Contender("submodules", "torch", "torch.cuda.make_graphed_callables", _submodules_by_torch),
    Contender("submodules", "pianola", "pianola.make_graphed_callables", _submodules_by_pianola),
)

"""The models that the table trains: many small kernels, whose launches cost more than the kernels."""

import copy
import dataclasses
from typing import Callable, Sequence

import torch
from torch import nn

Batch = tuple[torch.Tensor, torch.Tensor]  # what the model takes, and what the loss compares its result with
LEARNING_RATE = 1e-5
_BATCHES = 4  # in turn, so that a graph that does not read its new input is found out
_SEED = 1


@dataclasses.dataclass(frozen=True)
class Workload:
    name: str  # in the names of files
    title: str
    layers: nn.Sequential  # one child per submodule that is graphed by itself
    batches: list[Batch]

    def model(self) -> nn.Sequential:
        """A model of its own, with the same weights at each call."""
        return copy.deepcopy(self.layers)


def workloads(device: torch.device, quick: bool = False) -> list[Workload]:
    """The post's kind of model, and a transformer; `quick`: both so small that they only show that all runs."""
    if quick:
        return [_mlp(device, layers=3, width=8, batch=4), _transformer(device, layers=2, width=16, heads=2, batch=(2, 4))]
    return [_mlp(device, layers=16, width=64, batch=32), _transformer(device, layers=8, width=256, heads=4, batch=(2, 64))]


def _mlp(device: torch.device, layers: int, width: int, batch: int) -> Workload:
    def make() -> nn.Sequential:
        hidden = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(layers - 1)]
        return nn.Sequential(*hidden, nn.Linear(width, width))

    return _workload("mlp", f"MLP {layers} x {width}, batch {batch}, Adam", make, (batch, width), device)


def _transformer(device: torch.device, layers: int, width: int, heads: int, batch: tuple[int, int]) -> Workload:
    def layer() -> nn.Module:
        return nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )

    title = f"transformer {layers} x {width}, batch {batch[0]} x {batch[1]}, Adam"
    return _workload("transformer", title, lambda: nn.Sequential(*(layer() for _ in range(layers))), (*batch, width), device)


def _workload(
    name: str, title: str, make: Callable[[], nn.Sequential], shape: tuple[int, ...], device: torch.device
) -> Workload:
    with torch.random.fork_rng(devices=[]):  # whoever calls keeps the random numbers that are his
        torch.default_generator.manual_seed(_SEED)
        layers = make().to(device)
        batches = [(torch.randn(shape).to(device), torch.randn(shape).to(device)) for _ in range(_BATCHES)]
    return Workload(name, title, layers, batches)


class Training:
    """A model that is trained, with an optimizer that a graph can hold."""

    def __init__(self, workload: Workload) -> None:
        self.model = workload.model()
        capturable = workload.batches[0][0].is_cuda
        parameters = self.model.parameters()
        self.optimizer = torch.optim.Adam(parameters, lr=LEARNING_RATE, fused=True, capturable=capturable)

    def step(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """One iteration; returns the loss."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.mse_loss(self.model(x), target)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def iteration(self, microbatches: Sequence[Batch]) -> torch.Tensor:
        """The same for pianola.FullIteration, which watches model and optimizer because this is a method of their owner."""
        ((x, target),) = microbatches
        return self.step(x, target)

"""Batches lie at other addresses each time, as those of a loader do: a graph copies its inputs in."""
import torch
from torch import nn


class Batches:
    """A list whose entries are copies, so that each call sees memory of its own."""

    def __init__(self, device):
        self.all = [torch.randn(3, 4, device=device) for _ in range(6)]

    def as_list(self):
        return [(x.clone(), {"weight": x.abs().clone()}) for x in self.all]


def program(device):
    model = nn.Linear(4, 2).to(device).requires_grad_(False)

    def step(x, extra):
        return model(x) * extra["weight"].sum()

    return step, {"batches": Batches(device).as_list(), "iterations": 4}

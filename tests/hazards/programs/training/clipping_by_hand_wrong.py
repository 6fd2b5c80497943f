"""Clipping by hand takes the norm to the host, and divides there."""
import torch
from torch import nn


def clip(parameters, limit):
    norm = torch.stack([p.grad.norm() for p in parameters]).norm().item()  # hazard: PG101
    if norm > limit:
        for p in parameters:
            p.grad.mul_(limit / norm)  # hazard: PG301?, PG501?


def program(device):
    model = nn.Linear(4, 1).to(device)

    def step(x):
        model.zero_grad()
        (model(x) * 100).square().mean().backward()
        clip(list(model.parameters()), 1.0)

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

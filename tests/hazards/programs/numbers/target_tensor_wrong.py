"""A tensor is made in the step from a number that changes."""
import torch
from torch import nn


def program(device):
    model = nn.Linear(4, 1).to(device)
    goal = {"return": 1.0}

    def step(x):
        target = torch.tensor(goal["return"], device=device)  # hazard: PG303, PG202@cuda
        return (model(x) - target).square().mean()

    def between():
        goal["return"] += 0.5

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)], "between": between}

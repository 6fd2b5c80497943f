"""Mixup draws its weight from NumPy."""
import numpy as np
import torch
from torch import nn


def program(device):
    model = nn.Linear(4, 2).to(device).requires_grad_(False)

    def step(x):
        weight = np.random.beta(0.4, 0.4)  # hazard: PG604
        mixed = weight * x + (1 - weight) * x.flip(0)  # hazard: PG301?
        return model(mixed)

    return step, {"batches": [(torch.randn(4, 4, device=device),) for _ in range(3)]}

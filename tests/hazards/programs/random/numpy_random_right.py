"""The loop draws from NumPy, and fills a tensor with the weight."""
import numpy as np
import torch
from torch import nn


def program(device):
    model = nn.Linear(4, 2).to(device).requires_grad_(False)
    rng = np.random.default_rng(0)
    weight = torch.full((), 0.5, device=device)

    def between():
        weight.fill_(rng.beta(0.4, 0.4))

    def step(x):
        mixed = weight * x + (1 - weight) * x.flip(0)
        return model(mixed)

    return step, {"batches": [(torch.randn(4, 4, device=device),) for _ in range(3)], "between": between}

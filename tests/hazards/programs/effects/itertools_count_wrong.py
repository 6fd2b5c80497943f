"""Names of samples come from itertools.count()."""
import itertools

import torch
from torch import nn


class Sampler:
    def __init__(self, device):
        self.numbers = itertools.count()
        self.model = nn.Linear(4, 4).to(device).requires_grad_(False)

    def step(self, x):
        number = next(self.numbers)  # hazard: PG803*
        return self.model(x), f"sample {number}"

    # hazard: PG803*


def program(device):
    return Sampler(device).step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

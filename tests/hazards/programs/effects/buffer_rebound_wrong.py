"""A buffer is assigned the result of an operation, instead of being written."""
import torch
from torch import nn


class Centered(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)  # hazard: PG401|PG802
        return x - self.mean  # hazard: PG401?


def program(device):
    return Centered().to(device), {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

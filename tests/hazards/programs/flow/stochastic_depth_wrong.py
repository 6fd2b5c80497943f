"""Stochastic depth asks a tensor of one random number whether to run the block."""
import torch
from torch import nn


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 4), nn.GELU())

    def forward(self, x):
        if torch.rand((), device=x.device) < -1.0:  # hazard: PG102
            return x
        return x + self.block(x)


def program(device):
    model = nn.Sequential(Residual(), Residual()).to(device)
    return model, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

"""Layers are dropped by Python's random numbers."""
import random

import torch
from torch import nn


class LayerDrop(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(12))  # hazard: PG905?

    def forward(self, x):
        for layer in self.layers:
            if random.random() < 0.5:  # hazard: PG604, PG905?
                continue
            x = layer(x).tanh()  # hazard: PG501*, PG402?
        return x * 2  # hazard: PG501*


def program(device):
    random.seed(1)
    return LayerDrop().to(device), {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

"""The norm by which features are scaled goes through a Python float."""
import math

import torch
from torch import nn


class Normalize(nn.Module):
    def forward(self, x):
        norm = math.sqrt((x * x).sum())  # hazard: PG101
        return x / norm  # hazard: PG301?


def program(device):
    model = nn.Sequential(nn.Linear(4, 4), Normalize()).to(device)
    return model, {"batches": [(torch.randn(8, 4, device=device),) for _ in range(3)]}

"""Autocast inside the step, with its cache off."""
import torch
from torch import nn


def program(device):
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).to(device)
    kind = torch.device(device).type

    def step(x):
        with torch.autocast(kind, dtype=torch.bfloat16, cache_enabled=False):
            return model(x).float().softmax(-1)

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

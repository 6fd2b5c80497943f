"""Activations are moved to the CPU to save memory, one blocking copy each."""
import torch
from torch import nn


def program(device):
    layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2)).to(device)

    @torch.no_grad()
    def step(x):
        saved = []
        for layer in layers:
            x = layer(x).relu()
            saved.append(x.to("cpu"))  # hazard: PG103
        return saved

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

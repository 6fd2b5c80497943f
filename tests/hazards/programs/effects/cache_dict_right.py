"""Entries of the cache are written in place."""
import torch
from torch import nn


def program(device):
    layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2)).to(device).requires_grad_(False)
    cache = {number: torch.zeros(3, 4, device=device) for number in range(2)}

    def step(x):
        for number, layer in enumerate(layers):
            x = layer(x) + cache[number]
            cache[number].copy_(x * 0.5)
        return x

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

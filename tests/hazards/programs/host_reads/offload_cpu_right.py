"""Activations are copied into buffers of the host that are made once, pinned and without waiting."""
import torch
from torch import nn


def program(device):
    layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2)).to(device)
    saved = [torch.empty(3, 4, pin_memory=device.type == "cuda") for _ in layers]

    @torch.no_grad()
    def step(x):
        for layer, buffer in zip(layers, saved):
            x = layer(x).relu()
            buffer.copy_(x, non_blocking=True)

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

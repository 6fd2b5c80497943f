"""Noise is drawn on the CPU and moved to the device."""
import torch
from torch import nn

CUDA_ONLY = True


def program(device):
    model = nn.Linear(4, 4).to(device).requires_grad_(False)

    def step(x):
        noise = torch.randn(3, 4)  # hazard: PG606
        return model(x + noise.to(device))  # hazard: PG202, PG201?

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

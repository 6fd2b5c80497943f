"""Noise is drawn on the device."""
import torch
from torch import nn

CUDA_ONLY = True


def program(device):
    model = nn.Linear(4, 4).to(device).requires_grad_(False)

    def step(x):
        noise = torch.randn(3, 4, device=device)
        return model(x + noise)

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

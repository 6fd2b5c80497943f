"""Noise that is to be the same each time is drawn once."""
import torch
from torch import nn


def program(device):
    model = nn.Linear(4, 4).to(device).requires_grad_(False)
    torch.manual_seed(0)
    noise = torch.randn(3, 4, device=device)

    def step(x):
        return model(x) + noise

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

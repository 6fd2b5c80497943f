"""Batches are converted before the step."""
import torch
from torch import nn


def program(device):
    model = nn.Linear(4, 2).to(device)
    batches = [(torch.randn(3, 4, device=device, dtype=dtype),) for dtype in (torch.float, torch.double, torch.float)]

    @torch.no_grad()
    def step(x):
        x = x * 2
        return model(x)

    return step, {"batches": [(x.float(),) for (x,) in batches]}

"""Lazy modules make their parameters in the first warm-up run."""
import torch
from torch import nn


def program(device):
    model = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(2)).to(device)
    model(torch.zeros(3, 4, device=device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

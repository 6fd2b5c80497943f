"""A penalty over parameters, written as a generator expression and Python's sum()."""
import torch
from torch import nn


def program(device):
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, nesterov=True, momentum=0.9)

    def step(x):
        loss = model(x).square().mean() + 1e-3 * sum(p.square().sum() for p in model.parameters())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

"""A moving average of the weights with a fixed decay."""
import copy

import torch
from torch import nn


def program(device):
    model = nn.Linear(4, 2).to(device)
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=1e-4)

    def step(x):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 0.01)

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

"""Adagrad divides its learning rate by a step count that it reads on the host."""
import torch
from torch import nn


def program(device):
    model = nn.Linear(4, 1).to(device)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1, lr_decay=0.01)

    def step(x):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()  # hazard: PG1001

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

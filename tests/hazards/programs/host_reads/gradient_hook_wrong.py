"""A hook on an activation prints the size of its gradient."""
import torch
from torch import nn


def watch(gradient):
    print("gradient:", gradient.abs().mean())  # hazard: PG104, PG804?


def program(device):
    model = nn.Linear(4, 4).to(device)

    def step(x):
        model.zero_grad()
        hidden = model(x)
        hidden.register_hook(watch)
        hidden.square().sum().backward()

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

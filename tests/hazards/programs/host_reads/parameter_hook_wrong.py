"""A hook on a parameter checks its gradient on the host."""
import torch
from torch import nn


def check(gradient):
    if gradient.abs().max() > 1e6:  # hazard: PG102
        return gradient * 0
    return gradient


def program(device):
    model = nn.Linear(4, 1, bias=False).to(device)
    model.weight.register_hook(check)

    def step(x):
        model.zero_grad()
        model(x).square().mean().backward()

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

"""The loop keeps each iteration's gradients, to compare them later."""
import torch
from torch import nn


def program(device):
    model = nn.Linear(4, 1).to(device)
    kept = []

    def step(x):
        model.zero_grad()
        model(x).square().mean().backward()  # hazard: PG903*

    def between():
        kept.append([p.grad for p in model.parameters()])  # hazard: PG903*

    # hazard: PG903*
    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)], "between": between}

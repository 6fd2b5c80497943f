"""The tensor is made once, and filled between the steps."""
import torch
from torch import nn


def program(device):
    model = nn.Linear(4, 1).to(device)
    target = torch.tensor(1.0, device=device)

    def step(x):
        return (model(x) - target).square().mean()

    def between():
        target.fill_(target.item() + 0.5)

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)], "between": between}

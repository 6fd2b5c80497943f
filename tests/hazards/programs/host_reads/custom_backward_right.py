"""The gradient is clamped without asking how large it is."""
import torch
from torch import nn


class ClippedIdentity(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.clamp(-1, 1)


def program(device):
    model = nn.Linear(4, 1).to(device)

    def step(x):
        model.zero_grad()
        ClippedIdentity.apply(model(x)).sum().backward()

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

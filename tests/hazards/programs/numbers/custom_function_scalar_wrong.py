"""A gradient is reversed by a factor that ctx keeps as a number, and that the loop raises."""
import torch
from torch import nn


class ReverseGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * -ctx.factor, None  # hazard: PG301


def program(device):
    features, domain = nn.Linear(4, 4).to(device), nn.Linear(4, 1).to(device)
    strength = [0.1]

    def step(x):
        features.zero_grad()
        domain.zero_grad()
        domain(ReverseGradient.apply(features(x), strength[0])).square().mean().backward()

    def between():
        strength[0] += 0.1

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)], "between": between}

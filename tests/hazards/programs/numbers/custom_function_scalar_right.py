"""The factor is a tensor, saved for backward."""
import torch
from torch import nn


class ReverseGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(factor)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        (factor,) = ctx.saved_tensors
        return gradient * -factor, None


def program(device):
    features, domain = nn.Linear(4, 4).to(device), nn.Linear(4, 1).to(device)
    strength = torch.full((), 0.1, device=device)

    def step(x):
        features.zero_grad()
        domain.zero_grad()
        domain(ReverseGradient.apply(features(x), strength)).square().mean().backward()

    def between():
        strength.add_(0.1)

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)], "between": between}

"""A custom autograd function that saves tensors and constants."""
import torch
from torch import nn


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, beta):
        gate = torch.sigmoid(beta * x)
        ctx.save_for_backward(x, gate)
        ctx.beta = beta
        return x * gate

    @staticmethod
    def backward(ctx, gradient):
        x, gate = ctx.saved_tensors
        return gradient * (gate + ctx.beta * x * gate * (1 - gate)), None


def program(device):
    model = nn.Linear(4, 4).to(device)

    def step(x):
        model.zero_grad()
        Swish.apply(model(x), 1.5).sum().backward()

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

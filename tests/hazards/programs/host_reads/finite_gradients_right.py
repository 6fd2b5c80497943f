"""A gradient that is not finite becomes zero on the device."""
import torch
from torch import nn


def program(device):
    model = nn.Linear(4, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        gradients = torch.cat([p.grad.flatten() for p in model.parameters()])
        finite = torch.isfinite(gradients).all()
        for p in model.parameters():
            p.grad = torch.where(finite, p.grad, 0.0)
        optimizer.step()

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

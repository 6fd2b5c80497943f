"""The update is skipped where a gradient is not finite, by a question of the host."""
import torch
from torch import nn


def program(device):
    model = nn.Linear(4, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        gradients = torch.cat([p.grad.flatten() for p in model.parameters()])
        if not bool(torch.isfinite(gradients).all()):  # hazard: PG112
            return
        optimizer.step()

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

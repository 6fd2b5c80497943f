"""The loop deletes the gradients one by one."""
import torch
from torch import nn


def program(device):
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)).to(device)

    def step(x):
        loss = model(x).square().mean()  # hazard: PG403*
        loss.backward()  # hazard: PG403*

    def between():
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(0.1 * p.grad)
                p.grad = None

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)], "between": between}

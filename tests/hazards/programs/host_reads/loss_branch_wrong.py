"""Whether the loss is clamped is decided by an `if` on a tensor."""
import torch
from torch import nn


def program(device):
    model = nn.Linear(4, 1).to(device)

    def step(x, y):
        loss = (model(x) - y).square().mean()
        if loss > 100.0:  # hazard: PG102
            loss = loss.sqrt()
        loss.backward()
        for p in model.parameters():
            p.grad = None
        return loss.detach()

    return step, {"batches": [(torch.randn(8, 4, device=device), torch.randn(8, 1, device=device)) for _ in range(3)]}

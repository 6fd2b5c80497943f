"""Both values of the loss are computed, and torch.where chooses."""
import torch
from torch import nn


def program(device):
    model = nn.Linear(4, 1).to(device)

    def step(x, y):
        loss = (model(x) - y).square().mean()
        loss = torch.where(loss > 100.0, loss.sqrt(), loss)
        loss.backward()
        for p in model.parameters():
            p.grad = None
        return loss.detach()

    return step, {"batches": [(torch.randn(8, 4, device=device), torch.randn(8, 1, device=device)) for _ in range(3)]}

"""The loss is a sum over all elements, weighted by the mask."""
import torch
from torch import nn


def program(device):
    model = nn.Linear(4, 4).to(device)

    def step(x, mask):
        model.zero_grad()
        error = (model(x) - x).square()
        loss = (error * mask).sum() / mask.sum().clamp_min(1)
        loss.backward()
        return loss.detach()

    batches = [(torch.randn(3, 4, device=device), torch.rand(3, 4, device=device) > 0.5) for _ in range(3)]
    return step, {"batches": batches}

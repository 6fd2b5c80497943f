"""The loss is taken over the elements that masked_select leaves."""
import torch
from torch import nn


def program(device):
    model = nn.Linear(4, 4).to(device)

    def step(x, mask):
        model.zero_grad()
        error = (model(x) - x).square()
        loss = torch.masked_select(error, mask).mean()  # hazard: PG105|PG106
        loss.backward()
        return loss.detach()

    batches = [(torch.randn(3, 4, device=device), torch.rand(3, 4, device=device) > 0.5) for _ in range(3)]
    return step, {"batches": batches}

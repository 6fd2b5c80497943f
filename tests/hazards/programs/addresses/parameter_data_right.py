"""Weights are pruned in place."""
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(4, 6)
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        h = self.hidden(x).relu()
        return self.head(h)


def program(device):
    model = Net().to(device)

    @torch.no_grad()
    def prune():
        weight = model.hidden.weight
        weight.mul_(weight.abs() > 0.05)

    return model, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)], "between": prune}

"""Weights are pruned by assigning to param.data: the parameter gets other memory."""
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(4, 6)
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        h = self.hidden(x).relu()  # hazard: PG402
        return self.head(h)


def program(device):
    model = Net().to(device)

    def prune():
        weight = model.hidden.weight
        weight.data = weight.data * (weight.data.abs() > 0.05)

    return model, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)], "between": prune}

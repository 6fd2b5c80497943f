"""The shapes fit."""
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 6)
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        h = self.body(x).relu()
        return self.head(h)


def program(device):
    return Net().to(device), {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

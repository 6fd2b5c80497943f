"""A learned scale is a parameter."""
import torch
from torch import nn


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return self.linear(x) * self.scale


def program(device):
    return Scaled().to(device), {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

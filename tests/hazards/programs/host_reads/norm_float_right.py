"""The norm by which features are scaled stays a tensor."""
import torch
from torch import nn


class Normalize(nn.Module):
    def forward(self, x):
        norm = (x * x).sum().sqrt()
        return x / norm


def program(device):
    model = nn.Sequential(nn.Linear(4, 4), Normalize()).to(device)
    return model, {"batches": [(torch.randn(8, 4, device=device),) for _ in range(3)]}

"""What the hook did is a module of the model."""
import torch
from torch import nn


class Double(nn.Module):
    def forward(self, x):
        return x * 2


def program(device):
    model = nn.Sequential(nn.Linear(4, 4), Double(), nn.ReLU()).to(device)
    return model, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

"""An activation in place comes after the first convolution."""
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(3, 3, 1)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.relu(self.conv(x))


def program(device):
    model = Block().to(device).requires_grad_(False)
    return model, {"batches": [(torch.randn(2, 3, 5, device=device),) for _ in range(3)]}

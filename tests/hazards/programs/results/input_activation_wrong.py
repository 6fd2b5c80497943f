"""An activation in place is the first operation on the input."""
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.relu = nn.ReLU(inplace=True)
        self.conv = nn.Conv1d(3, 3, 1)

    def forward(self, x):
        x = self.relu(x)  # hazard: PG902
        return self.conv(x)


def program(device):
    model = Block().to(device).requires_grad_(False)
    return model, {"batches": [(torch.randn(2, 3, 5, device=device),) for _ in range(3)]}

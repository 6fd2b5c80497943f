"""What is to be printed is returned, and printed after the replay."""
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        hidden = self.linear(x)
        return torch.relu(hidden), hidden.detach()


def program(device):
    model = Block().to(device)
    return model, {"batches": [(torch.randn(2, 4, device=device),) for _ in range(3)]}

"""A print for debugging, forgotten in forward, reads the tensor."""
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        x = self.linear(x)
        print("hidden:", x)  # hazard: PG104, PG804?
        return torch.relu(x)


def program(device):
    model = nn.Sequential(Block(), Block()).to(device)
    return model, {"batches": [(torch.randn(2, 4, device=device),) for _ in range(3)]}

"""All instances count their calls in an attribute of the class."""
import torch
from torch import nn


class Counted(nn.Module):
    calls = 0

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        Counted.calls += 1  # hazard: PG803
        return self.linear(x)


def program(device):
    model = nn.Sequential(Counted(), Counted()).to(device).requires_grad_(False)
    return model, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

"""The hidden state is rebound in each step: a replay goes on reading the first."""
import torch
from torch import nn


class Recurrent(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.cell = nn.GRUCell(4, 4)
        self.h = torch.zeros(2, 4, device=device)

    def forward(self, x):
        self.h = self.cell(x, self.h)  # hazard: PG401|PG802
        return self.h * 2  # hazard: PG901?


def program(device):
    model = Recurrent(device).to(device).requires_grad_(False)
    return model, {"batches": [(torch.randn(2, 4, device=device),) for _ in range(3)]}

"""The hidden state is one tensor, and is written in place."""
import torch
from torch import nn


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(4, 4)
        self.register_buffer("h", torch.zeros(2, 4))

    def forward(self, x):
        self.h.copy_(self.cell(x, self.h))
        return self.h * 2


def program(device):
    model = Recurrent().to(device).requires_grad_(False)
    return model, {"batches": [(torch.randn(2, 4, device=device),) for _ in range(3)]}

"""The search weighs all activations by a tensor."""
import torch
from torch import nn


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("choice", torch.tensor([1.0, 0.0, 0.0]))

    def forward(self, x):
        h = self.linear(x)
        return self.choice[0] * torch.relu(h) + self.choice[1] * torch.tanh(h) + self.choice[2] * nn.functional.gelu(h)


def program(device):
    cell = Cell().to(device)

    def between():
        cell.choice.copy_(cell.choice.roll(1))

    return cell, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)], "between": between}

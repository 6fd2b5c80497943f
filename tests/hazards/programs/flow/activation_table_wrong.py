"""The activation is looked up by a name that a search algorithm changes."""
import itertools

import torch
from torch import nn

ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh, "gelu": nn.functional.gelu}


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.choice = "relu"

    def forward(self, x):
        return ACTIVATIONS[self.choice](self.linear(x))  # hazard: PG501


def program(device):
    cell, names = Cell().to(device), itertools.cycle(["tanh", "gelu", "relu"])

    def between():
        cell.choice = next(names)

    # hazard: PG304?
    return cell, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)], "between": between}

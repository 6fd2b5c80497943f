"""A head that forward no longer calls has parameters that get no gradient."""
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.old_head = nn.Linear(4, 3)

    def forward(self, x):
        return self.body(x).relu()


def program(device):
    # hazard: PG905
    return Net().to(device), {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

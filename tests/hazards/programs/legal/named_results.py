"""Results in a named tuple, one of them None each time."""
from typing import NamedTuple, Optional

import torch
from torch import Tensor, nn


class Output(NamedTuple):
    logits: Tensor
    hidden: Tensor
    attention: Optional[Tensor] = None


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        hidden = self.body(x).relu()
        return Output(self.head(hidden), hidden)


def program(device):
    return Net().to(device).requires_grad_(False), {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

"""The step logs by Python's logging."""
import logging

import torch
from torch import nn

log = logging.getLogger("hazards.training")
log.addHandler(logging.NullHandler())
log.propagate = False


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x):
        log.warning("forward with a batch of %d", len(x))  # hazard: PG804
        return self.linear(x)


def program(device):
    model = Net().to(device).requires_grad_(False)
    return model, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

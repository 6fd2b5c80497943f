"""A quantizer observes for some calls and then stops: it counts its calls on the host."""
import torch
from torch import nn


class Observer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("largest", torch.zeros(()))
        self.calls = 0

    def forward(self, x):
        self.calls += 1  # hazard: PG803
        if self.calls <= 3:
            self.largest.copy_(torch.maximum(self.largest, x.abs().amax()))  # hazard: PG501*
        return x / self.largest  # hazard: PG501*


def program(device):
    # hazard: PG304?
    return Observer().to(device), {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)], "iterations": 4}

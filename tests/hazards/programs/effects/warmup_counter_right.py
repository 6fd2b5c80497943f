"""The quantizer counts its calls, and chooses, on the device."""
import torch
from torch import nn


class Observer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("largest", torch.ones(()))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1)
        seen = torch.maximum(self.largest, x.abs().amax())
        self.largest.copy_(torch.where(self.calls <= 3, seen, self.largest))
        return x / self.largest


def program(device):
    return Observer().to(device), {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)], "iterations": 4}

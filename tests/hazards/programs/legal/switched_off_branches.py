"""Branches on the configuration, on shapes that stay, on types and on None."""
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, residual=True, bias=None):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.residual, self.bias = residual, bias

    def forward(self, x, mask=None):
        y = self.linear(x)
        if self.bias is not None:
            y = y + self.bias
        if mask is not None and mask.dtype == torch.bool:
            y = y.masked_fill(mask, 0.0)
        if self.residual and x.shape == y.shape and x.is_floating_point():
            y = x + y
        return y if self.training else y.detach()


def program(device):
    return Block().to(device), {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

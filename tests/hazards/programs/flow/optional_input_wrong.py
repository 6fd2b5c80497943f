"""Some batches come without a mask, and then nothing is masked."""
import torch
from torch import nn


class Pool(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x, mask=None):
        x = self.linear(x)
        if mask is not None:
            x = x.masked_fill(mask, 0.0)  # hazard: PG501*
        return x.sum(dim=1)  # hazard: PG501*


def program(device):
    x, mask = torch.randn(2, 3, 4, device=device), torch.rand(2, 3, 4, device=device) > 0.5
    # hazard: PG505?, PG502?
    return Pool().to(device).requires_grad_(False), {"batches": [(x, mask), (x,), (x, mask)]}

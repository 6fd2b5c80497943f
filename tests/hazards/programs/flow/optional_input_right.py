"""Where there is no mask, the batch has one that masks nothing."""
import torch
from torch import nn


class Pool(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x, mask):
        return self.linear(x).masked_fill(mask, 0.0).sum(dim=1)


def program(device):
    x, mask = torch.randn(2, 3, 4, device=device), torch.rand(2, 3, 4, device=device) > 0.5
    return Pool().to(device).requires_grad_(False), {"batches": [(x, mask), (x, torch.zeros_like(mask)), (x, mask)]}

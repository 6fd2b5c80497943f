"""The module computes the same, captured or not."""
import torch
from torch import nn

CUDA_ONLY = True


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return x / x.norm(dim=-1, keepdim=True) * self.weight


def program(device):
    return Norm().to(device).requires_grad_(False), {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

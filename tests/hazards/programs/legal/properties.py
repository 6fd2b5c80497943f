"""Properties and methods that compute the same each time."""
import torch
from torch import nn


class Rotary(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.width = width

    @property
    def half(self):
        return self.width // 2

    def angles(self, length, device):
        frequencies = 1.0 / 100 ** (torch.arange(self.half, device=device) / self.half)
        return torch.arange(length, device=device)[:, None] * frequencies

    def forward(self, x):
        angles = self.angles(x.shape[1], x.device)
        one, other = x[..., : self.half], x[..., self.half :]
        return torch.cat([one * angles.cos() - other * angles.sin(), one * angles.sin() + other * angles.cos()], -1)


def program(device):
    return Rotary().to(device), {"batches": [(torch.randn(2, 3, 4, device=device),) for _ in range(3)]}

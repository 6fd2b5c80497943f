"""All layers run; the device draws which of them count."""
import torch
from torch import nn


class LayerDrop(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(12))

    def forward(self, x):
        for layer in self.layers:
            keep = torch.rand((), device=x.device) >= 0.5
            x = torch.where(keep, layer(x).tanh(), x)
        return x * 2


def program(device):
    return LayerDrop().to(device), {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

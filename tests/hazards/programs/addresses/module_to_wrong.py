"""The loop moves the module to another memory format, which makes new parameters."""
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        return self.conv(x)  # hazard: PG402|PG504, PG401?


def program(device):
    model = Net().to(device).requires_grad_(False)
    formats = [torch.channels_last, torch.contiguous_format]

    def between(runs):
        model.to(memory_format=formats[runs % 2])

    return model, {"batches": [(torch.rand(2, 3, 5, 5, device=device),) for _ in range(3)], "between": between}

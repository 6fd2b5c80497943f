"""Buffers that are written in place are what a graph can keep."""
import torch
from torch import nn


class RunningStats(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.count += 1
        self.mean += (x.mean(0) - self.mean) / self.count
        return x - self.mean


def program(device):
    return RunningStats().to(device), {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

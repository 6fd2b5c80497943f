"""Both exits are computed, and torch.where takes the one of each sample."""
import torch
from torch import nn


class EarlyExit(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(6, 6)
        self.early = nn.Linear(6, 3)
        self.late = nn.Sequential(nn.ReLU(), nn.Linear(6, 3))

    def forward(self, x):
        h = self.stem(x)
        logits = self.early(h)
        sure = logits.softmax(-1).amax(-1, keepdim=True) > 0.9
        return torch.where(sure, logits, self.late(h))


def program(device):
    model = EarlyExit().to(device).eval().requires_grad_(False)
    return lambda x: model(x), {"batches": [(torch.randn(2, 6, device=device),) for _ in range(3)]}

"""A sample leaves the network early where a tensor says that it is sure enough."""
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
        if logits.softmax(-1).amax() > 1.5:  # hazard: PG102
            return logits
        return self.late(h)


def program(device):
    model = EarlyExit().to(device).eval().requires_grad_(False)
    return lambda x: model(x), {"batches": [(torch.randn(2, 6, device=device),) for _ in range(3)]}

"""Training and evaluation are captured for themselves; this one is evaluation."""
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.dropout = nn.Dropout(0.5)
        self.norm = nn.LayerNorm(4)

    def forward(self, x):
        h = self.dropout(self.linear(x))
        return self.norm(h)


def program(device):
    model = Net().to(device).requires_grad_(False).eval()
    return model, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

"""BatchNorm with momentum=None divides by its count of batches, which it reads on the host."""
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4, momentum=None)

    def forward(self, x):
        h = self.linear(x)
        return self.norm(h)  # hazard: PG101, PG301?


def program(device):
    model = Net().to(device)
    return model, {"batches": [(torch.randn(8, 4, device=device),) for _ in range(3)]}

"""BatchNorm with a fixed momentum counts on the device only."""
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4, momentum=0.1)

    def forward(self, x):
        h = self.linear(x)
        return self.norm(h)


def program(device):
    model = Net().to(device)
    return model, {"batches": [(torch.randn(8, 4, device=device),) for _ in range(3)]}

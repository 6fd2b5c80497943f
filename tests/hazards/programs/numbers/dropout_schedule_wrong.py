"""The probability of dropout grows over the epochs."""
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        h = self.linear(x).relu()
        return self.dropout(h)  # hazard: PG301


def program(device):
    model = Net().to(device)

    def next_epoch():
        model.dropout.p += 0.1

    return model, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)], "between": next_epoch}

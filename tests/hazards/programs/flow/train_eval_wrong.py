"""The module is switched from training to evaluation between the steps."""
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.dropout = nn.Dropout(0.5)
        self.norm = nn.LayerNorm(4)

    def forward(self, x):
        h = self.dropout(self.linear(x))  # hazard: PG301|PG501*
        return self.norm(h)  # hazard: PG301|PG501*


def program(device):
    model = Net().to(device).requires_grad_(False)

    def between():
        model.train(not model.training)

    # hazard: PG304?
    return model, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)], "between": between}

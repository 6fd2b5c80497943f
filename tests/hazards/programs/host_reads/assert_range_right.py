"""The assertion runs on the device."""
import torch
from torch import nn


class Lookup(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(16, 4)

    def forward(self, index):
        torch._assert_async((index >= 0).all())
        return self.table(index)


def program(device):
    model = Lookup().to(device)
    return model, {"batches": [(torch.randint(0, 16, (5,), device=device),) for _ in range(3)]}

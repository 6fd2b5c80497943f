"""An assertion about values makes the host wait for them."""
import torch
from torch import nn


class Lookup(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(16, 4)

    def forward(self, index):
        assert (index >= 0).all(), "negative index"  # hazard: PG102
        return self.table(index)


def program(device):
    model = Lookup().to(device)
    return model, {"batches": [(torch.randint(0, 16, (5,), device=device),) for _ in range(3)]}

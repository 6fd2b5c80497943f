"""All rows are looked up, those that occur twice too."""
import torch
from torch import nn


def program(device):
    table = nn.Embedding(32, 4).to(device).requires_grad_(False)

    def look_up(ids):
        return table(ids)

    return look_up, {"batches": [(torch.randint(0, 8, (10,), device=device),) for _ in range(3)]}

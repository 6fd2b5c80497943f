"""Only the rows that occur are looked up: unique() makes a result whose size is in the data."""
import torch
from torch import nn


def program(device):
    table = nn.Embedding(32, 4).to(device).requires_grad_(False)

    def look_up(ids):
        distinct, place = torch.unique(ids, return_inverse=True)  # hazard: PG105
        return table(distinct)[place]

    return look_up, {"batches": [(torch.randint(0, 8, (10,), device=device),) for _ in range(3)]}

"""Batches are dictionaries of keyword arguments; one has more rows."""
import torch
from torch import nn


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 4)

    def forward(self, *, input_ids, weights):
        rows = self.embed(input_ids)  # hazard: PG502
        return (rows * weights[:, None]).sum(0)


def program(device):
    def batch(count):
        return {"input_ids": torch.randint(0, 10, (count,), device=device), "weights": torch.rand(count, device=device)}

    return Scorer().to(device).requires_grad_(False), {"batches": [batch(3), batch(3), batch(5)]}

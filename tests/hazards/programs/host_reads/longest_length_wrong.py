"""Padding is cut off at the longest length of the batch, which the host has to read."""
import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 6)
        self.head = nn.Linear(6, 4)

    def forward(self, tokens, lengths):
        longest = int(lengths.max())  # hazard: PG101
        return self.head(self.embed(tokens[:, :longest]))


def program(device):
    model = Tagger().to(device)
    lengths = torch.tensor([3, 5, 2, 5], device=device)
    return model, {"batches": [(torch.randint(0, 20, (4, 8), device=device), lengths) for _ in range(3)]}

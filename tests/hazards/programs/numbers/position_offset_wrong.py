"""The position in a sequence is a Python integer that slices the table of positions."""
import torch
from torch import nn


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(16, 4)
        self.register_buffer("positions", torch.randn(32, 4))
        self.offset = 0

    def forward(self, tokens):
        length = tokens.shape[1]
        return self.embed(tokens) + self.positions[self.offset : self.offset + length]  # hazard: PG301|PG401


def program(device):
    model = Decoder().to(device)

    def between():
        model.offset += 1

    return model, {"batches": [(torch.randint(0, 16, (2, 1), device=device),) for _ in range(3)], "between": between}

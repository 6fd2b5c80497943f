"""An encoder that is to be a graphed callable runs for both views before its backward."""
import torch
from torch import nn


def program(device):
    encoder = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).to(device)

    def step(one, other):
        encoder.zero_grad()
        a, b = encoder(one), None
        b = encoder(other)  # hazard: PG907
        (a - b).square().mean().backward()

    batches = [(torch.randn(3, 4, device=device), torch.randn(3, 4, device=device)) for _ in range(3)]
    return step, {"batches": batches, "callables": (encoder,)}

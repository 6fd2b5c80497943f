"""Both views go through the encoder as one batch."""
import torch
from torch import nn


def program(device):
    encoder = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).to(device)

    def step(one, other):
        encoder.zero_grad()
        a, b = encoder(torch.cat([one, other])).chunk(2)
        (a - b).square().mean().backward()

    batches = [(torch.randn(3, 4, device=device), torch.randn(3, 4, device=device)) for _ in range(3)]
    return step, {"batches": batches, "callables": (encoder,)}

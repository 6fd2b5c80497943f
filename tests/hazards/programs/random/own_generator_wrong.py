"""Noise is drawn from a generator of the step's own, which the capture is not told of."""
import torch
from torch import nn


class Noisy(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.generator = torch.Generator(device=device).manual_seed(7)

    def forward(self, x):
        noise = torch.randn(x.shape, generator=self.generator, device=x.device)  # hazard: PG601
        return self.linear(x + noise)


def program(device):
    model = Noisy(device).to(device)
    return model, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

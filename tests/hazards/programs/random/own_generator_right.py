"""The capture is told of the generator."""
import torch
from torch import nn


class Noisy(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.generator = torch.Generator(device=device).manual_seed(7)

    def forward(self, x):
        noise = torch.randn(x.shape, generator=self.generator, device=x.device)
        return self.linear(x + noise)


def program(device):
    model = Noisy(device).to(device)
    batches = [(torch.randn(3, 4, device=device),) for _ in range(3)]
    return model, {"batches": batches, "generators": (model.generator,)}

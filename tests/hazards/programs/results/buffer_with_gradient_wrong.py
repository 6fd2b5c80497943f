"""A learned scale is registered as a buffer, and requires grad."""
import torch
from torch import nn


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(4, requires_grad=True))

    def forward(self, x):
        return self.linear(x) * self.scale  # hazard: PG904*


def program(device):
    model = Scaled()
    model.linear.to(device)
    model.scale = torch.ones(4, device=device, requires_grad=True)
    # hazard: PG904*
    return model, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

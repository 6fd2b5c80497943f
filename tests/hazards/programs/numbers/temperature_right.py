"""The temperature is a buffer, annealed in place."""
import torch
from torch import nn
from torch.nn import functional as F


class GumbelCode(nn.Module):
    def __init__(self):
        super().__init__()
        self.logits = nn.Linear(4, 6)
        self.register_buffer("temperature", torch.ones(()))

    def forward(self, x):
        return F.softmax(self.logits(x) / self.temperature, dim=-1)


def program(device):
    model = GumbelCode().to(device)

    def between():
        model.temperature.mul_(0.9)

    return model, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)], "between": between}

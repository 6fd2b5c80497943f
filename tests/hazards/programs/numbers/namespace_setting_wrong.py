"""A setting in a namespace, read through a property, changes between the steps."""
from types import SimpleNamespace

import torch
from torch import nn


class Head(nn.Module):
    def __init__(self, settings):
        super().__init__()
        self.settings = settings
        self.linear = nn.Linear(4, 3)

    @property
    def margin(self):
        return self.settings.margin * 2

    def forward(self, x):
        return self.linear(x) - self.margin  # hazard: PG301


def program(device):
    settings = SimpleNamespace(margin=0.1)
    model = Head(settings).to(device).requires_grad_(False)

    def between(runs):
        settings.margin = 0.1 + 0.05 * runs

    return model, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)], "between": between}

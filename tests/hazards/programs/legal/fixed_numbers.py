"""Numbers of the host that do not change may be as many as one likes."""
import dataclasses
import math

import torch
from torch import nn


@dataclasses.dataclass(frozen=True)
class Config:
    temperature: float = 0.7
    dropout: float = 0.1
    epsilon: float = 1e-6


def program(device):
    config, linear = Config(), nn.Linear(4, 4).to(device)
    table = {"scale": math.sqrt(4), "shift": 3}

    @torch.no_grad()
    def step(x):
        y = linear(x) / config.temperature + table["shift"]
        y = nn.functional.dropout(y, p=config.dropout)
        return y / (y.norm() + config.epsilon) * table["scale"]

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

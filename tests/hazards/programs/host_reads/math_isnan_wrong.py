"""math.isnan() takes a tensor, as a number of the host."""
import math

import torch
from torch import nn


def program(device):
    model = nn.Linear(4, 1).to(device).requires_grad_(False)

    def step(x):
        loss = model(x).mean()
        if math.isnan(loss):  # hazard: PG101|PG112
            return loss * 0
        return loss

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

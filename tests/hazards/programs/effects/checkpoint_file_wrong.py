"""The step saves the model to a file."""
import io

import torch
from torch import nn


def program(device):
    model = nn.Linear(4, 2).to(device).requires_grad_(False)

    def step(x):
        file = io.BytesIO()
        torch.save(model.state_dict(), file)  # hazard: PG103|PG804, PG401?
        return model(x)

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

"""The loop saves the model."""
import io

import torch
from torch import nn


def program(device):
    model = nn.Linear(4, 2).to(device).requires_grad_(False)

    def step(x):
        return model(x)

    def between():
        torch.save(model.state_dict(), io.BytesIO())

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)], "between": between}

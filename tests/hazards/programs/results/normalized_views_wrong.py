"""A view of the input is written."""
import torch
from torch import nn


def program(device):
    model = nn.Linear(4, 2).to(device).requires_grad_(False)

    def step(batch):
        pixels = batch["pixels"].view(3, 4)
        pixels[:, 0] = 0.0  # hazard: PG902
        return model(pixels)

    return step, {"batches": [({"pixels": torch.randn(12, device=device)},) for _ in range(3)]}

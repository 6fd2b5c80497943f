"""The step itself copies the batch from memory that is not pinned."""
import torch
from torch import nn

CUDA_ONLY = True


def program(device):
    model = nn.Linear(4, 2).to(device).requires_grad_(False)
    batch = torch.randn(3, 4)

    def step():
        x = batch.to(device)  # hazard: PG202
        return model(x)

    return step

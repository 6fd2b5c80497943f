"""The device is waited for in the step, to time it."""
import torch
from torch import nn

CUDA_ONLY = True


def program(device):
    model = nn.Linear(64, 64).to(device).requires_grad_(False)

    def step(x):
        y = model(x)
        torch.cuda.synchronize()  # hazard: PG108
        return y.relu()

    return step, {"batches": [(torch.randn(8, 64, device=device),) for _ in range(3)]}

"""The step allocates the pinned buffer into which it copies its result."""
import torch
from torch import nn

CUDA_ONLY = True


def program(device):
    model = nn.Linear(4, 2).to(device).requires_grad_(False)

    def step(x):
        y = model(x)
        host = torch.empty(3, 2, pin_memory=True)  # hazard: PG205
        host.copy_(y, non_blocking=True)
        return y

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

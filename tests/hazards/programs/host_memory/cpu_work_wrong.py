"""A part of the step works on tensors of the CPU: a graph runs it once."""
import torch
from torch import nn

CUDA_ONLY = True


def program(device):
    model = nn.Linear(4, 4).to(device).requires_grad_(False)
    weights = torch.ones(4)
    on_device = torch.empty(4, device=device)
    staging = torch.empty(4, pin_memory=True)

    def step(x):
        torch.mul(weights, 0.9, out=staging)  # hazard: PG201
        on_device.copy_(staging, non_blocking=True)
        return model(x) * on_device

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

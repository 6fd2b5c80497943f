"""The host writes the next batch into the pinned buffer from which the step copies."""
import torch
from torch import nn

CUDA_ONLY = True


def program(device):
    model = nn.Linear(4, 2).to(device).requires_grad_(False)
    pinned = torch.randn(3, 4, pin_memory=True)
    static_batch = torch.empty(3, 4, device=device)

    def between():
        pinned.copy_(torch.randn(3, 4))

    def step():
        static_batch.copy_(pinned, non_blocking=True)  # hazard: PG206
        return model(static_batch)

    return step, {"between": between}

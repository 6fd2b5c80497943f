"""A side stream begins to work without waiting for the step's stream."""
import torch
from torch import nn

CUDA_ONLY = True


def program(device):
    one, other = nn.Linear(4, 4).to(device).requires_grad_(False), nn.Linear(4, 4).to(device).requires_grad_(False)
    side, bias = torch.cuda.Stream(device), torch.zeros(4, device=device)

    def step(x):
        with torch.cuda.stream(side):
            # hazard: PG110?
            shift = other(bias)  # hazard: PG703
        y = one(x)
        torch.cuda.current_stream(device).wait_stream(side)
        return y + shift

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

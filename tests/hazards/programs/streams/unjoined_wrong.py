"""A side stream copies weights ahead, and nobody waits for it before the step ends."""
import torch
from torch import nn

CUDA_ONLY = True


def program(device):
    model = nn.Linear(4, 4).to(device).requires_grad_(False)
    side = torch.cuda.Stream(device)
    spare = torch.empty_like(model.weight)

    def step(x):
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            spare.copy_(model.weight)  # hazard: PG702
        return model(x)

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

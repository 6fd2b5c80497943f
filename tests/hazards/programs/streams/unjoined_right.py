"""The step's stream waits for the side stream before it ends."""
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
            spare.copy_(model.weight)
        y = model(x)
        torch.cuda.current_stream(device).wait_stream(side)
        return y

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

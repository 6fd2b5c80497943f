"""Part of the step goes to the default stream, which cannot be captured."""
import torch
from torch import nn

CUDA_ONLY = True


def program(device):
    model = nn.Linear(4, 4).to(device).requires_grad_(False)

    def step(x):
        h = model(x)
        with torch.cuda.stream(torch.cuda.default_stream(device)):
            h = h * 2  # hazard: PG701
        return h.relu()

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

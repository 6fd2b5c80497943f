"""Each GPU has a graph of its own; this is the first one's part."""
import torch
from torch import nn

CUDA_ONLY = True
DEVICES = 2


def program(device):
    first = nn.Linear(4, 4).to(device)

    @torch.no_grad()
    def step(x):
        return first(x)

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

"""Half of the model lies on another GPU."""
import torch
from torch import nn

CUDA_ONLY = True
DEVICES = 2


def program(device):
    other = torch.device("cuda", 1 - (device.index or 0))
    first, second = nn.Linear(4, 4).to(device), nn.Linear(4, 4).to(other)

    @torch.no_grad()
    def step(x):
        hidden = first(x).to(other)  # hazard: PG204
        return second(hidden)  # hazard: PG204?

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

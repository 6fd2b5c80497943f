"""Group sizes in a tensor become Python numbers, to split by."""
import torch
from torch import nn


def program(device):
    experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(2)).to(device).requires_grad_(False)
    counts = torch.tensor([2, 4], device=device)

    def step(x):
        parts = torch.split(x, counts.tolist())  # hazard: PG101|PG103
        return torch.cat([expert(part) for expert, part in zip(experts, parts)])

    return step, {"batches": [(torch.randn(6, 4, device=device),) for _ in range(3)]}

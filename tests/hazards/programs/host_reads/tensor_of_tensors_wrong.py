"""torch.tensor of a list of tensors reads each of them on the host."""
import torch
from torch import nn


def program(device):
    heads = nn.ModuleList(nn.Linear(4, 1) for _ in range(2)).to(device)

    @torch.no_grad()
    def losses(x):
        each = [head(x).square().mean() for head in heads]
        return torch.tensor(each)  # hazard: PG101|PG103, PG303?

    return losses, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

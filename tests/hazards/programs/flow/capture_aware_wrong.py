"""The module computes something else while it is captured, so that the graph is not what eager runs."""
import torch
from torch import nn

CUDA_ONLY = True


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x):
        if torch.cuda.is_current_stream_capturing():
            return x * self.weight  # hazard: PG501|PG1205*
        return x / x.norm(dim=-1, keepdim=True) * self.weight  # hazard: PG501|PG1205*


def program(device):
    # hazard: PG501|PG1205*
    return Norm().to(device).requires_grad_(False), {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

"""Each expert collects its tokens with nonzero(), whose size the host must know."""
import torch
from torch import nn


class MixtureOfExperts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(4, 2)
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x):
        choice = self.router(x).argmax(-1)
        result = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = (choice == number).nonzero().squeeze(1)  # hazard: PG105
            result.index_add_(0, rows, expert(x.index_select(0, rows)))
        return result


def program(device):
    model = MixtureOfExperts().to(device).requires_grad_(False)
    return model, {"batches": [(torch.randn(8, 4, device=device),) for _ in range(3)]}

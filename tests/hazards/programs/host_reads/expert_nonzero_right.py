"""Every expert sees every token, and its result counts where it was chosen."""
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
            chosen = (choice == number).unsqueeze(-1)
            result = result + torch.where(chosen, expert(x), 0.0)
        return result


def program(device):
    model = MixtureOfExperts().to(device).requires_grad_(False)
    return model, {"batches": [(torch.randn(8, 4, device=device),) for _ in range(3)]}

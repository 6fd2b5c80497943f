"""Both views go through the dropout together."""
import torch
from torch import nn


def program(device):
    model = nn.Linear(4, 4).to(device)

    @torch.no_grad()
    def step(one, other):
        keep = torch.rand(3, 4, device=device) > 0.5
        return (model(one) - model(other)) * keep * 2

    batches = [(torch.randn(3, 4, device=device), torch.randn(3, 4, device=device)) for _ in range(3)]
    return step, {"batches": batches}

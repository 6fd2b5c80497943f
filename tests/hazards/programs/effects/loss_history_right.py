"""The step returns its loss; the loop appends a copy."""
import torch
from torch import nn


def program(device):
    model = nn.Linear(4, 1).to(device)
    loss = torch.zeros((), device=device)
    history = []

    @torch.no_grad()
    def step(x):
        loss.copy_(model(x).square().mean())

    def between():
        history.append(loss.clone())

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)], "between": between}

"""The loop freezes the backbone after some iterations."""
import torch
from torch import nn


def program(device):
    body, head = nn.Linear(4, 4).to(device), nn.Linear(4, 1).to(device)

    def step(x):
        body.zero_grad()
        head.zero_grad()
        loss = head(body(x).tanh()).square().mean()  # hazard: PG501*
        loss.backward()  # hazard: PG501*

    def between(runs):
        body.requires_grad_(runs % 2 == 0)

    # hazard: PG304?, PG905?, PG403?
    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)], "between": between}

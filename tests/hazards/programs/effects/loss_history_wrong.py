"""The step appends its losses to a list: once, when it is captured."""
import torch
from torch import nn


def program(device):
    model = nn.Linear(4, 1).to(device)
    history = []

    @torch.no_grad()
    def step(x):
        loss = model(x).square().mean()  # hazard: PG801*, PG901?
        history.append(loss)  # hazard: PG801*, PG901?

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

"""A set and a list deep inside a configuration remember what was seen."""
import torch
from torch import nn


def program(device):
    model = nn.Linear(4, 4).to(device).requires_grad_(False)
    log = {"train": {"norms": []}}

    def step(x):
        y = model(x)
        log["train"]["norms"].append(y.norm())  # hazard: PG801, PG901?
        return y

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

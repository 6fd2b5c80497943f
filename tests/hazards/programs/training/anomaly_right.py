"""Anomaly detection is off."""
import torch
from torch import nn


def program(device):
    model = nn.Linear(4, 1).to(device)

    def step(x):
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

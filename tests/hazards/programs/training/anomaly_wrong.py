"""Anomaly detection was left on: it looks for NaN on the host after each backward operation."""
import torch
from torch import nn


def program(device):
    model = nn.Linear(4, 1).to(device)

    def step(x):
        model.zero_grad()
        with torch.autograd.detect_anomaly(check_nan=True):  # hazard: PG1008*
            loss = model(x).square().mean()  # hazard: PG1008*
            loss.backward()  # hazard: PG1008*

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

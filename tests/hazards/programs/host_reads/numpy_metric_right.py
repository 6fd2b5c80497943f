"""Predictions are copied into a buffer of the host, which the metric reads after the replay."""
import torch
from torch import nn


def program(device):
    model = nn.Linear(4, 2).to(device)
    host_copy = torch.empty(3, 2, pin_memory=device.type == "cuda")

    @torch.no_grad()
    def predict(x):
        probabilities = model(x).softmax(-1)
        host_copy.copy_(probabilities, non_blocking=True)

    return predict, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

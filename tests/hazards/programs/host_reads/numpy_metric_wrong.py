"""Predictions are turned into a NumPy array for the metric."""
import torch
from torch import nn


def program(device):
    model = nn.Linear(4, 2).to(device)

    @torch.no_grad()
    def predict(x):
        probabilities = model(x).softmax(-1)
        return probabilities.cpu().numpy()  # hazard: PG103

    return predict, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

"""Detections below the threshold are dropped with a boolean mask."""
import torch
from torch import nn


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.boxes = nn.Linear(8, 4)
        self.score = nn.Linear(8, 1)

    def forward(self, features):
        boxes = self.boxes(features)
        scores = self.score(features).sigmoid().squeeze(-1)
        keep = scores > 0.5
        return boxes[keep]  # hazard: PG106


def program(device):
    model = Detector().to(device).requires_grad_(False)
    return model, {"batches": [(torch.randn(10, 8, device=device),) for _ in range(3)]}

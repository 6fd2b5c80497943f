"""The ten best detections are kept, with a mask that says which are good."""
import torch
from torch import nn


class Detector(nn.Module):
    def __init__(self, count=4):
        super().__init__()
        self.boxes = nn.Linear(8, 4)
        self.score = nn.Linear(8, 1)
        self.count = count

    def forward(self, features):
        boxes = self.boxes(features)
        scores = self.score(features).sigmoid().squeeze(-1)
        best, place = scores.topk(self.count)
        return boxes[place], best > 0.5


def program(device):
    model = Detector().to(device).requires_grad_(False)
    return model, {"batches": [(torch.randn(10, 8, device=device),) for _ in range(3)]}

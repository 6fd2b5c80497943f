"""argwhere() finds the pixels to be labelled."""
import torch
from torch import nn


class Keypoints(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 1, 3, padding=1)

    def forward(self, image):
        heat = self.conv(image).sigmoid()
        return torch.argwhere(heat[:, 0] > 0.5)  # hazard: PG105


def program(device):
    model = Keypoints().to(device).requires_grad_(False)
    return model, {"batches": [(torch.randn(1, 1, 6, 6, device=device),) for _ in range(3)]}

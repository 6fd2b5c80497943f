"""The best pixels, as many as are wanted, come from topk."""
import torch
from torch import nn


class Keypoints(nn.Module):
    def __init__(self, count=5):
        super().__init__()
        self.conv = nn.Conv2d(1, 1, 3, padding=1)
        self.count = count

    def forward(self, image):
        heat = self.conv(image).sigmoid()
        score, place = heat.flatten(1).topk(self.count)
        width = heat.shape[-1]
        return score, place // width, place % width


def program(device):
    model = Keypoints().to(device).requires_grad_(False)
    return model, {"batches": [(torch.randn(1, 1, 6, 6, device=device),) for _ in range(3)]}

"""One batch is channels-last, the others are not."""
import torch
from torch import nn


class Stem(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, image):
        return self.conv(image - 0.5)  # hazard: PG504


def program(device):
    images = [torch.rand(2, 3, 6, 6, device=device) for _ in range(3)]
    images[1] = images[1].to(memory_format=torch.channels_last)
    return Stem().to(device).requires_grad_(False), {"batches": [(image,) for image in images]}

"""Multi-scale training resizes the images to another size each time."""
import torch
from torch import nn
from torch.nn import functional as F


class MultiScale:
    def __init__(self, device):
        self.conv = nn.Conv2d(3, 4, 3).to(device)
        self.size = 6

    def __call__(self, images):
        images = F.interpolate(images, size=(self.size, self.size), mode="nearest")  # hazard: PG301|PG502
        return self.conv(images).mean()

    def next_size(self):
        self.size += 2


def program(device):
    training = MultiScale(device)
    batches = [(torch.rand(1, 3, 8, 8, device=device),) for _ in range(3)]
    return training, {"batches": batches, "between": training.next_size}

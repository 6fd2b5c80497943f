"""Constants are tensors of the program, made before the step."""
import torch
from torch import nn

MEAN = (0.48, 0.45, 0.40)


class Stem(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor(MEAN).view(3, 1, 1), persistent=False)
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, image):
        return self.conv(image - self.mean) * torch.ones((), device=image.device)


def program(device):
    return Stem().to(device), {"batches": [(torch.rand(2, 3, 5, 5, device=device),) for _ in range(3)]}

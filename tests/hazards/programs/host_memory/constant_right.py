"""The constant is a buffer of the module."""
import torch
from torch import nn

CUDA_ONLY = True


class Normalize(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.48, 0.45, 0.40])[:, None, None])

    def forward(self, image):
        return image - self.mean


def program(device):
    return Normalize().to(device), {"batches": [(torch.rand(2, 3, 4, 4, device=device),) for _ in range(3)]}

"""A constant is made from host values in every step: a copy from memory that is not pinned."""
import torch
from torch import nn

CUDA_ONLY = True


class Normalize(nn.Module):
    def forward(self, image):
        mean = torch.tensor([0.48, 0.45, 0.40], device=image.device)  # hazard: PG202
        return image - mean[:, None, None]


def program(device):
    return Normalize(), {"batches": [(torch.rand(2, 3, 4, 4, device=device),) for _ in range(3)]}

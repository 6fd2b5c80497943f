"""The logit scale is a buffer, which moves to the device with the module."""
import torch
from torch import nn

CUDA_ONLY = True


class Similarity(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, image, text):
        return image @ text.T * self.scale


def program(device):
    model = Similarity().to(device)

    def between():
        model.scale.mul_(1.1)

    batches = [(torch.randn(3, 4, device=device), torch.randn(3, 4, device=device)) for _ in range(3)]
    return model, {"batches": batches, "between": between}

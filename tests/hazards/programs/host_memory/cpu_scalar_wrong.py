"""The logit scale lies on the CPU: its value becomes an argument of the kernel."""
import torch
from torch import nn

CUDA_ONLY = True


class Similarity(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.tensor(2.0)

    def forward(self, image, text):
        return image @ text.T * self.scale  # hazard: PG203


def program(device):
    model = Similarity().to(device)

    def between():
        model.scale.mul_(1.1)

    batches = [(torch.randn(3, 4, device=device), torch.randn(3, 4, device=device)) for _ in range(3)]
    return model, {"batches": batches, "between": between}

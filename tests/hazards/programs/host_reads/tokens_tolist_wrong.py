"""The chosen tokens become a Python list in the step."""
import torch
from torch import nn


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.head = nn.Linear(8, 16)

    def forward(self, tokens):
        best = self.head(self.embed(tokens)).argmax(-1)
        return best.tolist()  # hazard: PG101|PG103


def program(device):
    model = Generator().to(device).requires_grad_(False)
    return model, {"batches": [(torch.randint(0, 16, (4,), device=device),) for _ in range(3)]}

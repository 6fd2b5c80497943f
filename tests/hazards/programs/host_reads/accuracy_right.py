"""The number of right predictions is counted in a tensor on the device."""
import torch
from torch import nn


class Accuracy(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("correct", torch.zeros((), dtype=torch.long))

    def forward(self, logits, y):
        self.correct.add_((logits.argmax(dim=1) == y).sum())


def program(device):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).to(device)
    accuracy = Accuracy().to(device)
    batches = [(torch.randn(8, 4, device=device), torch.randint(0, 3, (8,), device=device)) for _ in range(3)]

    @torch.no_grad()
    def evaluate(x, y):
        accuracy(model(x), y)

    return evaluate, {"batches": batches}

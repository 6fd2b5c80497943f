"""The number of right predictions is read on the host in the step."""
import torch
from torch import nn


class Meter:
    def __init__(self):
        self.correct = 0
        self.seen = 0


def program(device):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).to(device)
    batches = [(torch.randn(8, 4, device=device), torch.randint(0, 3, (8,), device=device)) for _ in range(3)]

    @torch.no_grad()
    def evaluate(x, y):
        predicted = model(x).argmax(dim=1)
        accuracy = (predicted == y).sum().item() / len(y)  # hazard: PG101
        return predicted, accuracy

    return evaluate, {"batches": batches}

"""The loop counts."""
import torch
from torch import nn


class Trainer:
    def __init__(self, device):
        self.model = nn.Linear(4, 2).to(device).requires_grad_(False)
        self.iterations = 0

    def step(self, x):
        return self.model(x)

    def count(self):
        self.iterations += 1


def program(device):
    trainer = Trainer(device)
    batches = [(torch.randn(3, 4, device=device),) for _ in range(3)]
    return trainer.step, {"batches": batches, "between": trainer.count}

"""A moving average of the loss is a Python number."""
import torch
from torch import nn


class Trainer:
    def __init__(self, device):
        self.model = nn.Linear(4, 1).to(device).requires_grad_(False)
        self.average = 0.0

    def step(self, x):
        loss = self.model(x).square().mean()
        self.average = 0.9 * self.average + 0.1 * loss.item()  # hazard: PG101, PG803?
        return loss


def program(device):
    trainer = Trainer(device)
    return trainer.step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}

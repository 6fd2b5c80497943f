"""Losses are added up outside with their graph, so that every iteration's activations stay alive."""
import torch
from torch import nn


class Trainer:
    def __init__(self, device):
        self.model = nn.Linear(4, 1).to(device)
        self.total = 0.0
        self.loss = None

    def step(self, x):
        self.loss = self.model(x).square().mean()  # hazard: PG802?, PG901*

    def log(self):
        self.total = self.total + self.loss  # hazard: PG901*


def program(device):
    trainer = Trainer(device)
    # hazard: PG901*
    batches = [(torch.randn(3, 4, device=device),) for _ in range(3)]
    return trainer.step, {"batches": batches, "between": trainer.log}

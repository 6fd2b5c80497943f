"""The head is trained alone in the first epoch, so that the first iterations run other operations."""
import torch
from torch import nn


class Trainer:
    def __init__(self, device):
        self.body, self.head = nn.Linear(4, 4).to(device), nn.Linear(4, 1).to(device)
        self.epoch = 0

    def step(self, x):
        features = self.body(x)
        if self.epoch < 2:
            features = features.detach()  # hazard: PG501*
        else:
            features = features.relu()  # hazard: PG501*
        loss = self.head(features).square().mean()  # hazard: PG501*
        return torch.autograd.grad(loss, list(self.head.parameters()))

    def end_of_epoch(self):
        self.epoch += 1


def program(device):
    trainer = Trainer(device)
    # hazard: PG304?
    batches = [(torch.randn(3, 4, device=device),) for _ in range(3)]
    return trainer.step, {"batches": batches, "between": trainer.end_of_epoch}

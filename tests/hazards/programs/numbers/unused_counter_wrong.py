"""The step asks a counter that changes whether it should log; so far the answer is always no."""
import torch
from torch import nn


class Trainer:
    def __init__(self, device):
        self.model = nn.Linear(4, 2).to(device)
        self.global_step = 0

    def step(self, x):
        loss = self.model(x).square().mean()
        if self.global_step >= 1000:  # hazard: PG304
            loss = loss * 0.5
        loss.backward()
        self.model.zero_grad()

    def advance(self):
        self.global_step += 1


def program(device):
    trainer = Trainer(device)
    batches = [(torch.randn(3, 4, device=device),) for _ in range(3)]
    return trainer.step, {"batches": batches, "between": trainer.advance}
